"""The energy that an output minimises."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipool.objective import Bounds, LinearMap
from equipool.ops.combination import combine
from equipool.ops.derivatives import separate
from equipool.potentials.base import SummedPotential
from equipool.regularizers import Proportional, Regularizer
from equipool.scalings import Weights


class Energy:
    r"""The energy of one batch, $E(y) = a R(y) + w \sum_i F(x_i, y)$, with $a$ and $w$ of each set
    from the scaling. A function of `y [num_rows, K]` alone."""

    def __init__(
        self,
        potential: SummedPotential,
        regularizer: Regularizer,
        weights: Weights,
        slope: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.potential = potential
        self.regularizer = regularizer
        self.slope = regularizer.slope() if slope is None else slope
        self.weights = weights

    def value(self, y: Tensor) -> Tensor:
        """`[num_rows]`: of each set, never a mean over the batch."""
        return (
            self.weights.regularizer.squeeze(-1) * self.regularizer(y)
            + self.weights.potential.squeeze(-1) * self.potential.value(y)
        )  # fmt: skip

    def gradient(self, y: Tensor) -> Tensor:
        """`[num_rows, K]`, differentiable by everything that it is made of."""
        gradient, weights = self.potential.gradient(y), self.weights
        if isinstance(self.slope, Proportional):
            return combine(gradient, weights.potential, y, weights.regularizer, self.slope.factor)
        point, rest = separate(y)
        slope = self.slope(point) + rest
        return torch.addcmul(weights.potential * gradient, weights.regularizer, slope)

    def hessian(self, y: Tensor) -> LinearMap:
        """The product with the Hessian at y, without a graph."""
        potential = self.potential.hessian(y)
        outer, inner = (weight.detach() for weight in self.weights)
        if isinstance(self.slope, Proportional):
            factor = outer * self.slope.factor.detach()
            return lambda direction: torch.addcmul(inner * potential(direction), factor, direction)
        product = torch.func.vjp(self.slope, y.detach())[1]
        return lambda direction: torch.addcmul(
            inner * potential(direction), outer, product(direction)[0].detach()
        )

    def bounds(self) -> Bounds | None:
        """Bounds of the curvature, where both parts know theirs."""
        with torch.no_grad():
            regularizer, potential = self.regularizer.bounds(), self.potential.bounds()
            if regularizer is None or potential is None:
                return None
            outer, inner = (weight.squeeze(-1) for weight in self.weights)
            return Bounds(
                outer * regularizer.lower + inner * potential.lower,
                outer * regularizer.upper + inner * potential.upper,
            )

    def restrict(self, rows: Tensor) -> Energy:
        """The energy of some of the rows alone, given by number, ascending."""
        weights = Weights(*(weight.index_select(0, rows) for weight in self.weights))
        return Energy(self.potential.restrict(rows), self.regularizer, weights, self.slope)
