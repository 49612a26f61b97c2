"""Regularisers: the part of the energy that keeps the output of a set near the origin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from equipool.checks import check_part
from equipool.learned_scalars import PositiveScalar
from equipool.objective import Bounds
from equipool.ops.derivatives import combine, separate

AddProduct = Callable[[Tensor, Tensor], Tensor]


class Regularizer(nn.Module):
    """The part of the energy that depends on `y` alone, `R(y)`: `[B, K] -> [B]`.

    A subclass must provide `forward`, differentiable twice. It may override

    - `bind`, if the gradient is known in closed form,
    - `bounds`, if bounds of the curvature are known.

    Example:
        >>> class Quartic(equipool.regularizers.Regularizer):
        ...     def forward(self, y):
        ...         return y.pow(4).sum(-1)
        >>> layer = equipool.EquilibriumAggregation(3, 8, regularizer=Quartic())
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([1, 8])
    """

    @abstractmethod
    def forward(self, y: Tensor) -> Tensor:
        """`R(y)` of each set."""

    def bind(self) -> BoundRegularizer:
        """The derivatives as used in one search. Called once per search, so that learned scalars
        are read once and not at every step."""
        return BoundRegularizer(self)

    def bounds(self) -> Bounds | None:
        """Bounds of the Hessian's eigenvalues over all y, as tensors without dimensions, if they
        are known."""
        return None


class BoundRegularizer:
    """The derivatives of a regulariser during one search, by automatic differentiation.

    A subclass may override `gradient`, which must be differentiable, and the other methods, which
    follow from it, where they are cheaper in closed form.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def gradient(self, y: Tensor) -> Tensor:
        """The gradient of `R` with respect to y, `[B, K] -> [B, K]`."""
        return torch.func.grad(lambda y: self.function(y).sum())(y)

    def add_gradient(self, other: Tensor, weight: Tensor, y: Tensor, own_weight: Tensor) -> Tensor:
        """`weight * other + own_weight * gradient(y)`, with weights `[B, 1]`."""
        # A non-finite row may be left out of the loss, but must not reach the others.
        point, rest = separate(y)
        return torch.addcmul(weight * other, own_weight, self.gradient(point) + rest)

    def add_hessian(self, y: Tensor, own_weight: Tensor) -> AddProduct:
        """The function `other, v -> other + own_weight * H v` with the Hessian `H` at y, without a
        graph."""
        product = torch.func.vjp(self.gradient, y.detach())[1]
        return lambda other, v: torch.addcmul(other, own_weight, product(v)[0].detach())


class QuadraticRegularizer(BoundRegularizer):
    """A regulariser with the gradient `factor * y`."""

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor

    def gradient(self, y: Tensor) -> Tensor:
        return self.factor * y

    def add_gradient(self, other: Tensor, weight: Tensor, y: Tensor, own_weight: Tensor) -> Tensor:
        return combine(other, weight, y, own_weight, self.factor)

    def add_hessian(self, y: Tensor, own_weight: Tensor) -> AddProduct:
        factor = own_weight * self.factor.detach()
        return lambda other, v: torch.addcmul(other, factor, v)


class SquaredNorm(Regularizer):
    r"""$R(y) = w \lVert y \rVert_2^2$ with a learned weight $w = \mathrm{softplus}(\lambda)$.

    Args:
        weight: the initial weight, used exactly as given.
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

    @property
    def is_zero(self) -> bool:
        """Whether there is no regulariser: a weight of 0 is never learned."""
        return self.raw_weight.given == 0

    def forward(self, y: Tensor) -> Tensor:
        return self.weight * y.square().sum(-1)

    def bind(self) -> BoundRegularizer:
        return QuadraticRegularizer(2 * self.weight)

    def bounds(self) -> Bounds:
        curvature = 2 * self.weight
        return Bounds(curvature, curvature)

    def reset_parameters(self) -> None:
        self.raw_weight.reset_parameters()


def as_regularizer(given: Regularizer | float) -> Regularizer:
    """The regulariser that a layer's argument stands for: a number is the weight of the squared
    norm, and 0 is none."""
    if isinstance(given, Regularizer):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float):
        check_part("regularizer", given, Regularizer, "SquaredNorm(0.1), or a number")
    return SquaredNorm(given, learnable=given != 0)
