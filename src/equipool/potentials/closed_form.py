"""Potentials whose minimum over a set is known: the paper's Table 1, quantiles and Huber, Fréchet
means, attention and power sums."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from equipool.checks import check_sizes
from equipool.potentials.base import Potential


def check_same_shape(x: Tensor, y: Tensor) -> None:
    """Reject an element and an output of different sizes, which would broadcast silently."""
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

    The minimum is not unique, and the search returns the first one that it meets. At zero, the
    paper's start, a set of negative numbers already has zero energy, so the output is zero. To get
    the maximum, start below it, as `equipool.closed_form.max` does, and use no momentum, which
    would overshoot.
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
    $h(r) = \delta (|r| - \delta / 2)$ beyond: a mean on which an outlier has bounded influence.

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

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [6.0]])
        >>> equipool.closed_form.sum(channels=1)(x)
        tensor([[9.]])
    """

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        check_same_shape(x, y)
        return -(x * y).sum(-1)


class FrechetMean(Potential):
    r"""$F(x, y) = d(x, y)^2$ with a distance of your own, minimised by the Fréchet mean: the point
    with the least squared distance to the elements.

    Args:
        distance: maps `x [N, C]` and `y [N, K]` to the distances `[N]`; a function or a module.
            It must be differentiable where `x = y`, and at the layer's start. There
            `torch.linalg.vector_norm` and `abs` have the gradient 0; `sqrt` gives NaN. Training
            differentiates twice, and then `vector_norm` gives NaN, too: if elements may lie exactly
            at the start, add a tiny number under the root.

    Example:
        >>> def between_logarithms(x, y):
        ...     return (x.log() - y.log()).abs().sum(-1)
        >>> layer = equipool.closed_form.frechet_mean(
        ...     1,
        ...     between_logarithms,
        ...     start=equipool.LearnedStart(1, value=1.0, learnable=False),
        ...     learning_rate=0.5,
        ... )
        >>> layer(torch.tensor([[1.0], [2.0], [4.0]])).round(decimals=3)  # the geometric mean
        tensor([[2.]])
    """

    def __init__(self, distance: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.distance = distance

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distance(x, y).square()


class Attention(Potential):
    r"""The potential of the paper's appendix B, with $y = [y_r, y_s]$ and weights
    $w(x) = e^{h \cdot x - c}$ for a query $h$:

    $$F(x, y) = w(x) \lVert x - y_r \rVert^2 + (y_s - w(x))^2.$$

    Setting its gradient to zero gives the softmax-weighted mean, and the mean weight:

    $$y_r = \frac{\sum_i w(x_i) x_i}{\sum_i w(x_i)}, \qquad y_s = \frac{1}{N} \sum_i w(x_i).$$

    The appendix gives $y_r = \frac{1}{N} \sum_i w(x_i) x_i$ and divides it by $y_s$. That is the
    minimum of another potential, $\lVert w(x) x - y_r \rVert^2 + (y_s - w(x))^2$; here $y_r$ is
    normalised already, and dividing it again would be wrong.

    The shift $c$, zero in the paper, cancels in $y_r$ and keeps the weights in range: in float32
    $e^{h \cdot x}$ overflows beyond 88. Under the scaling `"mean"` the energy's curvature by $y_r$
    is twice the mean weight $\bar w$, so a search without momentum needs a step size below
    $1 / \bar w$, and with step size $\alpha$ each step multiplies the error by
    $1 - 2 \alpha \bar w$. A shift near the largest score bounds the weights by about 1; a shift
    far above it makes the search slow.

    Args:
        query: $h$, `[C]`; becomes a parameter.
        shift: $c$.

    Shapes:
        `x [N, C]`, `y [N, C + 1]` -> `[N]`.
    """

    given: Tensor

    def __init__(self, query: Tensor, shift: float = 0.0) -> None:
        super().__init__()
        if query.dim() != 1 or query.numel() == 0 or not query.is_floating_point():
            raise ValueError(
                f"query has shape {list(query.shape)} and dtype {query.dtype}, "
                "expected [C] floating-point numbers"
            )
        self.in_channels = query.shape[0]
        self.out_channels = query.shape[0] + 1
        self.shift = shift
        self.query = nn.Parameter(query.detach().clone())
        self.register_buffer("given", query.detach().clone(), persistent=False)

    def reset_parameters(self) -> None:
        """Return the query to the one given at construction."""
        with torch.no_grad():
            self.query.copy_(self.given)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.exp(x @ self.query - self.shift)
        spread = (x - y[:, :-1]).square().sum(-1)
        return weight * spread + (y[:, -1] - weight).square()

    def extra_repr(self) -> str:
        return f"{self.in_channels}, shift={self.shift}"


class PowerSums(Potential):
    r"""The potential of the paper's Theorem 1, for sets of `set_size` $= N$ numbers:

    $$F(x, y) = \sum_{k=1}^{M} \left(\frac{y_k}{N} - x^k\right)^2,
      \qquad y_k = \sum_i x_i^k \text{ at the minimum.}$$

    With $M = N$ these power sums determine the set, and with $M < N$ they do not.

    For a set of another size, the minimum is `set_size` times the mean of the powers, which is not
    their sum.

    Args:
        num_powers: $M$, the size of the output.
        set_size: $N$, the number of elements of every set.

    Shapes:
        `x [N, 1]`, `y [N, num_powers]` -> `[N]`.

    Example:
        >>> layer = equipool.closed_form.power_sums(set_size=2)
        >>> layer(torch.tensor([[2.0], [3.0]]))
        tensor([[ 5., 13.]])
    """

    def __init__(self, num_powers: int, set_size: int) -> None:
        super().__init__()
        check_sizes(num_powers=num_powers, set_size=set_size)
        self.in_channels = 1
        self.out_channels = num_powers
        self.set_size = set_size

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        exponents = torch.arange(1, self.out_channels + 1, dtype=x.dtype, device=x.device)
        return (y / self.set_size - x**exponents).square().sum(-1)

    def extra_repr(self) -> str:
        return f"{self.out_channels}, {self.set_size}"
