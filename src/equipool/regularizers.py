"""What keeps the output of a set near the origin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipool.objective import Bounds
from equipool.scalars import PositiveScalar


@dataclass(frozen=True, eq=False)
class Proportional:
    """The slope of a quadratic: the function `y -> factor * y`."""

    factor: Tensor

    def __call__(self, y: Tensor) -> Tensor:
        return self.factor * y


class Regularizer(nn.Module):
    """The part of the energy that depends on `y` alone, `R(y)`: `[B, K] -> [B]`."""

    @abstractmethod
    def forward(self, y: Tensor) -> Tensor:
        """`R(y)` of each set."""

    def slope(self) -> Callable[[Tensor], Tensor]:
        """Its derivative by y, a function `[B, K] -> [B, K]`. Asked for once a solve, so that
        learned scalars are read once and not at every step."""
        return torch.func.grad(lambda y: self(y).sum())

    def bounds(self) -> Bounds | None:
        """Bounds of the Hessian's eigenvalues over all y, without dimensions, where they are
        known."""
        return None


class SquaredNorm(Regularizer):
    r"""$R(y) = w \lVert y \rVert_2^2$ with a learned weight $w = \mathrm{softplus}(\lambda)$.

    Args:
        weight: the weight it starts with; the value given is the value in effect.
        learnable: whether the weight is learned. A fixed weight may be 0.

    Example:
        >>> SquaredNorm(weight=0.5)(torch.ones(2, 4))
        tensor([2., 2.], grad_fn=<MulBackward0>)
    """

    def __init__(self, weight: float = 0.1, learnable: bool = True) -> None:
        super().__init__()
        self.raw_weight = PositiveScalar("weight", weight, learnable)

    @property
    def weight(self) -> Tensor:
        return self.raw_weight()

    def forward(self, y: Tensor) -> Tensor:
        return self.weight * y.square().sum(-1)

    def slope(self) -> Callable[[Tensor], Tensor]:
        return Proportional(2 * self.weight)

    def bounds(self) -> Bounds:
        curvature = 2 * self.weight
        return Bounds(curvature, curvature)

    def reset_parameters(self) -> None:
        self.raw_weight.reset_parameters()


class NoRegularizer(Regularizer):
    """$R(y) = 0$, for potentials that have a minimum by themselves."""

    def forward(self, y: Tensor) -> Tensor:
        return y.new_zeros(y.shape[0])

    def slope(self) -> Callable[[Tensor], Tensor]:
        return torch.zeros_like

    def bounds(self) -> Bounds:
        return Bounds(torch.zeros(()), torch.zeros(()))
