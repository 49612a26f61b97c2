"""The energy that an output minimises."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.objective import Bounds, LinearMap
from equipool.potentials.base import SummedPotential
from equipool.regularizers import BoundRegularizer, Regularizer
from equipool.scalings import Weights


class Energy:
    r"""The energy of one batch, $E(y) = a R(y) + w \sum_i F(x_i, y)$, where the scaling gives $a$
    and $w$ of each set. A function of `y [num_rows, K]` alone."""

    def __init__(
        self, potential: SummedPotential, regularizer: Regularizer, weights: Weights,
        bound: BoundRegularizer | None = None,
    ) -> None:  # fmt: skip
        self.potential = potential
        self.regularizer = regularizer
        self.bound = regularizer.bind() if bound is None else bound
        self.weights = weights

    def value(self, y: Tensor) -> Tensor:
        """`[num_rows]`: the energy of each set, never a mean over the batch."""
        outer, inner = (weight.squeeze(-1) for weight in self.weights)
        return outer * self.regularizer(y) + inner * self.potential.value(y)

    def gradient(self, y: Tensor) -> Tensor:
        """`[num_rows, K]`, differentiable by all that it is made of."""
        weights = self.weights
        gradient = self.potential.gradient(y)
        return self.bound.add_gradient(gradient, weights.potential, y, weights.regularizer)

    def hessian(self, y: Tensor) -> LinearMap:
        """The product with the Hessian at y, without a graph."""
        outer, inner = (weight.detach() for weight in self.weights)
        product, add_product = self.potential.hessian(y), self.bound.add_hessian(y, outer)
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

    def restrict(self, rows: Tensor) -> Energy | None:
        """The energy of some rows alone, given by ascending numbers, if the potential has it."""
        potential = self.potential.restrict(rows)
        if potential is None:
            return None
        weights = Weights(*(weight.index_select(0, rows) for weight in self.weights))
        return Energy(potential, self.regularizer, weights, self.bound)
