"""Potentials whose minimum over a set is known: the paper's Table 1, quantiles and Huber."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from equipool.potentials.base import Potential


def check_same_shape(x: Tensor, y: Tensor) -> None:
    """Refuse an element and an output of different sizes, which would broadcast in silence."""
    if x.shape != y.shape:
        raise ValueError(
            f"x has {x.shape[-1]} channels and y {y.shape[-1]}, expected out_channels equal to "
            "in_channels: this potential compares them coordinate by coordinate"
        )


class DifferencePotential(Potential):
    r"""A potential $F(x, y) = \sum_c f(x_c - y_c)$, the same in every coordinate.

    Shapes:
        `x [N, C]`, `y [N, C]` -> `[N]`.
    """

    @abstractmethod
    def of_difference(self, r: Tensor) -> Tensor:
        """$f(r)$, elementwise."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        check_same_shape(x, y)
        return self.of_difference(x - y).sum(-1)


class Mean(DifferencePotential):
    r"""$F(x, y) = \lVert x - y \rVert^2$, minimised by the mean.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [6.0]])
        >>> equipool.closed_form.mean(channels=1)(x)
        tensor([[3.]])
    """

    def of_difference(self, r: Tensor) -> Tensor:
        return r.square()


class Median(DifferencePotential):
    r"""$F(x, y) = \sum_c |x_c - y_c|$, minimised in each coordinate by the median.

    With an even number of elements every point between the two middle ones is a minimum, and the
    search ends at one of them.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [6.0]])
        >>> equipool.closed_form.median(channels=1)(x).round(decimals=1)
        tensor([[2.]])
    """

    def of_difference(self, r: Tensor) -> Tensor:
        return r.abs()


class Max(DifferencePotential):
    r"""$F(x, y) = \sum_c \max(0, x_c - y_c)$, minimised in each coordinate by the maximum, and by
    everything above it.

    The minimum is not unique: what the search returns is the first minimum on its way. From zero,
    the paper's start, a set of negative numbers has zero energy at once and returns zero. To get
    the maximum, start below it, as `equipool.closed_form.max` does, and use no momentum, which
    would carry y on.
    """

    def of_difference(self, r: Tensor) -> Tensor:
        return r.clamp(min=0)


class Quantile(DifferencePotential):
    r"""The pinball potential $F(x, y) = \sum_c \max(\tau (x_c - y_c), (\tau - 1)(x_c - y_c))$,
    minimised in each coordinate by the $\tau$-quantile.

    The minimum is the smallest element that has at least $\tau N$ elements at or below it; where
    $\tau N$ is a whole number, also everything from there to the next element.

    Args:
        tau: between 0 and 1, both excluded. A half gives the median.
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        if not 0 < tau < 1:
            raise ValueError(f"tau is {tau}, expected more than 0 and less than 1")
        self.tau = tau

    def of_difference(self, r: Tensor) -> Tensor:
        return torch.maximum(self.tau * r, (self.tau - 1) * r)

    def extra_repr(self) -> str:
        return f"tau={self.tau}"


class Huber(DifferencePotential):
    r"""$F(x, y) = \sum_c h(x_c - y_c)$ with $h(r) = r^2 / 2$ where $|r| \le \delta$ and
    $h(r) = \delta (|r| - \delta / 2)$ beyond: a mean whose outliers pull no harder than $\delta$.

    A large $\delta$ gives the mean, a small one the median.

    Args:
        delta: where the square turns into a straight line; more than 0.
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        if not (math.isfinite(delta) and delta > 0):
            raise ValueError(f"delta is {delta}, expected more than 0")
        self.delta = delta

    def of_difference(self, r: Tensor) -> Tensor:
        pull = r.clamp(-self.delta, self.delta)
        return pull * (r - pull / 2)

    def extra_repr(self) -> str:
        return f"delta={self.delta}"


class Sum(Potential):
    r"""$F(x, y) = -x \cdot y$. With $R(y) = \lVert y \rVert^2 / 2$ the energy is minimised by the
    sum.

    Alone it has no minimum: it needs `SquaredNorm(0.5)` and the scaling `"sum"`, which
    `equipool.closed_form.sum` sets.

    Shapes:
        `x [N, C]`, `y [N, C]` -> `[N]`.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [6.0]])
        >>> equipool.closed_form.sum(channels=1)(x)
        tensor([[9.]])
    """

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        check_same_shape(x, y)
        return -(x * y).sum(-1)
