"""A Fréchet mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.aggregation import EquilibriumAggregation
from equipool.baselines.base import Rival, match_channels
from equipool.potentials.base import Potential
from equipool.regularizers import NoRegularizer
from equipool.solvers import Nesterov


class LearnedDistance(Potential):
    r"""The square of a learned distance, $F(x, y) = d(x, y)^2 = \lVert g(x) - g(y) \rVert^2$ with
    $g(z) = z + \tanh(A z + b)$.

    $A$ is scaled down to a Frobenius norm of 1/2 where it is larger. So $g$ stretches no direction
    by less than 1/2 or more than 3/2: it can be inverted, the Fréchet mean is unique, namely
    $g^{-1}(\frac{1}{N} \sum g(x))$, and gradient descent finds it.

    It is not a distance for `equipool.potentials.FrechetMean`, because the root has no second
    derivative where `x = y`.
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


class FrechetPooling(Rival):
    r"""The Fréchet mean $\arg\min_y \sum_i d(x_i, y)^2$ under a `LearnedDistance`, by gradient
    descent from zero, and a linear map behind it where the sizes differ. The mean of an empty set
    is taken to be zero.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        num_steps: steps of gradient descent.

    Example:
        >>> FrechetPooling(3, 8)(torch.randn(5, 3)).shape
        torch.Size([1, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, num_steps: int = 20) -> None:
        super().__init__(in_channels, out_channels)
        self.mean = EquilibriumAggregation(
            in_channels,
            in_channels,
            potential=LearnedDistance(in_channels),
            regularizer=NoRegularizer(),
            # Near the minimum the curvature of the mean lies between 0.5 and 4.5.
            solver=Nesterov(learning_rate=0.4, momentum=0.0, learnable=False),
            num_steps=num_steps,
            scaling="mean",
        )
        self.linear = match_channels(in_channels, out_channels)

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        return self.linear(self.mean(x, index, ptr=ptr, mask=mask, dim_size=dim_size))
