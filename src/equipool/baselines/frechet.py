"""The Fréchet mean under a learned distance."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.aggregation import EquilibriumAggregation
from equipool.baselines.base import RaggedRival, match_channels
from equipool.potentials.base import Potential
from equipool.sets import Sets
from equipool.solvers import Nesterov


class LearnedDistance(Potential):
    r"""The square of a learned distance, $F(x, y) = d(x, y)^2 = \lVert g(x) - g(y) \rVert^2$ with
    $g(z) = z + \tanh(A z + b)$.

    $A$ is scaled down to a Frobenius norm of at most 1/2. So $g$ stretches every direction by 1/2
    to 3/2: it is invertible, the Fréchet mean is unique, $g^{-1}(\frac{1}{N} \sum g(x))$, and
    gradient descent finds it.

    `equipool.potentials.FrechetMean` cannot take this distance, because the root has no second
    derivative at `x = y`.
    """

    LARGEST = 0.5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, channels)

    def embed(self, z: Tensor) -> Tensor:
        """`g(z)`, in the dtype of `z`."""
        weight, bias = self.linear.weight.to(z.dtype), self.linear.bias.to(z.dtype)
        weight = weight * (self.LARGEST / torch.linalg.matrix_norm(weight).clamp(min=self.LARGEST))
        return z + torch.tanh(functional.linear(z, weight, bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.embed(x.to(y.dtype)) - self.embed(y)).square().sum(-1)


class FrechetPooling(RaggedRival):
    r"""The Fréchet mean $\arg\min_y \sum_i d(x_i, y)^2$ under a `LearnedDistance`, by gradient
    descent from zero, followed by a linear map if the sizes differ. The mean of an empty set is
    zero.

    Args:
        num_steps: steps of gradient descent.
    """

    def __init__(self, in_channels: int, out_channels: int, *, num_steps: int = 20) -> None:
        super().__init__(in_channels, out_channels)
        self.mean = EquilibriumAggregation(
            in_channels,
            in_channels,
            potential=LearnedDistance(in_channels),
            regularizer=0,
            # Near the minimum the curvature lies between 0.5 and 4.5.
            solver=Nesterov(learning_rate=0.4, momentum=0.0, learnable=False),
            steps=num_steps,
            scaling="mean",
        )
        self.linear = match_channels(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return self.linear(self.mean(x, sets.index, dim_size=sets.num_rows))
