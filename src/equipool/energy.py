"""The energy that an output minimises."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.potentials.base import SummedPotential
from equipool.regularizers import Regularizer
from equipool.scalings import Weights


class Energy:
    r"""The energy of one batch, $E(y) = a R(y) + w \sum_i F(x_i, y)$, with $a$ and $w$ of each set
    from the scaling. A function of `y [num_rows, K]` alone."""

    def __init__(
        self, potential: SummedPotential, regularizer: Regularizer, weights: Weights
    ) -> None:
        self.potential = potential
        self.regularizer = regularizer
        self.slope = regularizer.slope()
        self.weights = weights

    def value(self, y: Tensor) -> Tensor:
        """`[num_rows]`: of each set, never a mean over the batch."""
        return (
            self.weights.regularizer.squeeze(-1) * self.regularizer(y)
            + self.weights.potential.squeeze(-1) * self.potential.value(y)
        )  # fmt: skip

    def gradient(self, y: Tensor) -> Tensor:
        """`[num_rows, K]`, differentiable by everything that it is made of."""
        potential = self.weights.potential * self.potential.gradient(y)
        return torch.addcmul(potential, self.weights.regularizer, self.slope(y))
