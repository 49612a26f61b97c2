"""The energy that an output minimises, and how it is scaled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from equipool.objective import Bounds, LinearMap, Minimum, assemble, separable_minimum
from equipool.ops.execution import normal, outside_inference_mode
from equipool.potentials.base import SummedPotential
from equipool.regularizers import BoundRegularizer, QuadraticRegularizer, Regularizer, SquaredNorm
from equipool.sets import FLOATS, Sets, check_like

EPSILON = 1e-8
LOG_2 = math.log(2)

ScalingName = Literal["log", "log-mean", "sum", "mean"]
SCALINGS: tuple[ScalingName, ...] = get_args(ScalingName)


class Weights(NamedTuple):
    """Weights of the two parts of a set's energy, `[num_rows, 1]` each."""

    regularizer: Tensor
    potential: Tensor


def scaling_weights(name: ScalingName, totals: Tensor, dtype: torch.dtype) -> Weights:
    """Weights of each row's energy, from the number or the total weight N of its elements,
    `[num_rows]`.

    - `"log"`, the paper's Eq. 8: the whole energy times `log2(N + 1) / (N + eps)`.
    - `"log-mean"`: `R + log2(N + 1) mean F`. In contrast to `"log"`, the curvature that `R` gives
      the energy does not vanish in large sets, so that as many steps reach the minimum of a set of
      any size.
    - `"sum"`: `R + sum F`, without scaling.
    - `"mean"`: `R + mean F`, independent of N, so `R` must not be divided by it.

    An empty set has weights of 0: it has no energy, and its output is the start.
    """
    totals = totals.to(dtype).unsqueeze(-1)
    occupied = (totals > 0).to(dtype)
    if name == "sum":
        return Weights(occupied, occupied)
    small, divisor = totals < 1, torch.where(totals > 0, totals, 1)
    growth = torch.where(small, torch.log1p(totals) / LOG_2, torch.log2(totals + 1))
    if name == "log":
        weight = growth / torch.where(small, divisor, totals + EPSILON)
        return Weights(weight, weight)
    return Weights(occupied, (occupied if name == "mean" else growth) / divisor)


class RowEnergy:
    r"""The energy of one batch, $E(y) = a R(y) + w \sum_i F(x_i, y)$, where the scaling gives $a$
    and $w$ of each set. A function of `y [num_rows, K]` alone: the objective of a search."""

    def __init__(
        self, potential: SummedPotential, regularizer: Regularizer, weights: Weights,
        derivatives: BoundRegularizer | None = None,
    ) -> None:  # fmt: skip
        self.potential = potential
        self.regularizer = regularizer
        self.derivatives = regularizer.bind() if derivatives is None else derivatives
        self.weights = weights

    def value(self, y: Tensor) -> Tensor:
        """`[num_rows]`: the energy of each set, never a mean over the batch."""
        outer, inner = (weight.squeeze(-1) for weight in self.weights)
        return outer * self.regularizer(y) + inner * self.potential.value(y)

    def gradient(self, y: Tensor) -> Tensor:
        """`[num_rows, K]`, differentiable with respect to all that it is made of."""
        weights = self.weights
        gradient = self.potential.gradient(y)
        return self.derivatives.add_gradient(gradient, weights.potential, y, weights.regularizer)

    def hessian(self, y: Tensor) -> LinearMap:
        """The product with the Hessian at y, without a graph."""
        outer, inner = (weight.detach() for weight in self.weights)
        product, add_product = self.potential.hessian(y), self.derivatives.add_hessian(y, outer)
        return lambda direction: add_product(inner * product(direction), direction)

    def bounds(self) -> Bounds | None:
        """Bounds of the curvature, if both parts know theirs."""
        with torch.no_grad():
            regularizer, potential = self.regularizer.bounds(), self.potential.bounds()
            if regularizer is None or potential is None:
                return None
            outer, inner = (weight.squeeze(-1) for weight in self.weights)
            return Bounds(
                outer * regularizer.lower + inner * potential.lower,
                outer * regularizer.upper + inner * potential.upper,
            )

    def minimum(self, start: Tensor, max_passes: int) -> Minimum:
        """The minimum of each row, if the potential knows it; an empty row is that of the start."""
        if not isinstance(self.derivatives, QuadraticRegularizer):
            raise TypeError(
                f"the regularizer is {type(self.regularizer).__name__}, expected a SquaredNorm or "
                "0 with the solver Exact: use another solver"
            )
        outer, inner = self.weights
        occupied, pull = inner > 0, None
        if not self.potential.has_all:
            return separable_minimum(self, start, occupied, max_passes)
        if not (isinstance(self.regularizer, SquaredNorm) and self.regularizer.is_zero):
            pull = self.derivatives.factor * outer / torch.where(occupied, inner, 1)
        found = self.potential.minimum(pull, max_passes)
        return found._replace(y=torch.where(occupied, found.y, start))

    def restrict(self, rows: Tensor) -> RowEnergy | None:
        """The energy of some rows alone, given by ascending numbers, if the potential has it."""
        potential = self.potential.restrict(rows)
        if potential is None:
            return None
        weights = Weights(*(weight.index_select(0, rows) for weight in self.weights))
        return RowEnergy(potential, self.regularizer, weights, self.derivatives)

    def reweighted(self, weights: Weights) -> RowEnergy:
        """The energy with other weights of its two parts, `[num_rows, 1]` each."""
        return RowEnergy(self.potential, self.regularizer, weights, self.derivatives)


class Energy:
    r"""The energy of each set of a batch as a function of its output. Made by `layer.energy`.

    `E(y)` maps `y [B, K]` to `[B]`, scaled as in the search: a set's number depends on its own
    elements and its own row of y alone. Value and gradient can be differentiated with respect to
    y, the elements and the layer's parameters. A set with a non-finite value is NaN.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> x, index = torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])
        >>> energy = layer.energy(x, index)
        >>> y = layer(x, index)
        >>> energy(y).shape, energy.gradient(y).shape, energy.hessian(y).shape
        (torch.Size([2]), torch.Size([2, 8]), torch.Size([2, 8, 8]))
    """

    def __init__(self, objective: RowEnergy, x: Tensor, sets: Sets, out_channels: int) -> None:
        self.sets = sets
        self._objective = objective
        self._x = x  # for messages
        self._shape = (sets.num_sets, out_channels)

    def __call__(self, y: Tensor) -> Tensor:
        """`[B, K] -> [B]`."""
        return self._evaluate(self._objective.value, y)

    def gradient(self, y: Tensor) -> Tensor:
        """The gradient with respect to y, `[B, K] -> [B, K]`: zero at a minimum."""
        return self._evaluate(self._objective.gradient, y)

    def hessian(self, y: Tensor) -> Tensor:
        """The Hessian of each set at y, `[B, K] -> [B, K, K]`, from K products. It has no graph."""
        return self._evaluate(lambda rows: assemble(self._objective.hessian(rows), rows), y)

    def hessian_product(self, y: Tensor, v: Tensor) -> Tensor:
        """The product of each set's Hessian at y with its row of `v [B, K]`, `[B, K]`. It has no
        graph."""
        return self.hessian_map(y)(v)

    def hessian_map(self, y: Tensor) -> LinearMap:
        """The function `v -> hessian_product(y, v)`, for many products at one y."""
        with outside_inference_mode():
            product = self._objective.hessian(self._rows("y", y))

        def of_sets(v: Tensor) -> Tensor:
            with outside_inference_mode():
                return self._of_sets(product(self._rows("v", v)))

        return of_sets

    def bounds(self) -> Bounds | None:
        """Bounds of the Hessian's eigenvalues over all y, `[B]` each, or None if they are not
        known: those of a `ConvexPotential` with a `SquaredNorm` are."""
        with outside_inference_mode():
            found = self._objective.bounds()
        return None if found is None else Bounds(*map(self._of_sets, found))

    @property
    def weights(self) -> Weights:
        """The scaling's weights of the regulariser and of the potential, `[B, 1]` each."""
        return Weights(*map(self.sets.real, self._objective.weights))

    def reweighted(self, weights: Weights) -> Energy:
        """The same with other weights of the regulariser and of the potential, `[B, 1]` each."""
        rows = Weights(*map(self.sets.padded_rows, weights))
        return Energy(self._objective.reweighted(rows), self._x, self.sets, self._shape[1])

    def _evaluate(self, function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """A function of rows, as one of sets."""
        with outside_inference_mode():
            return self._of_sets(function(self._rows("y", y)))

    def _rows(self, name: str, rows: Tensor) -> Tensor:
        """`[B, K]` as `[num_rows, K]`, in float32 at least."""
        check_like(name, rows, self._x, self._shape, FLOATS)
        return self.sets.padded_rows(normal(rows).to(self._objective.weights.potential.dtype))

    def _of_sets(self, rows: Tensor) -> Tensor:
        return self.sets.real(self.sets.mark(rows))
