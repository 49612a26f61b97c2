"""Layers with a known output: a closed-form potential with a suitable regulariser, scaling, start
and step size.

They are for understanding and for tests. Each is an `EquilibriumAggregation` without a network.

On `learning_rate` and `num_steps`: `mean`, `sum` and `power_sums` reach the minimum in one step.
`median`, `quantile` and `max` have kinks, where the gradient jumps: with a constant step they end
within one `learning_rate` of the minimum, not necessarily nearer, and approach it by as little as
`learning_rate / N` per step. Their outputs consist of whole steps, so their gradient by `x` is
zero; and because the gradient does not vanish next to a kink, `Solution.converged` means nothing
for them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from equipool import potentials
from equipool.aggregation import EquilibriumAggregation
from equipool.regularizers import Regularizer, SquaredNorm
from equipool.scalings import ScalingName
from equipool.sets import Sets
from equipool.solvers import Nesterov
from equipool.starts import Start


class BelowStart(Start):
    """The smallest element of the set in each coordinate, so that no maximum is below the start;
    zero for an empty set. No gradient passes to `x`.

    Example:
        >>> layer = equipool.closed_form.max(1, num_steps=0)
        >>> layer(torch.tensor([[-3.0], [-1.0]]))
        tensor([[-3.]])
    """

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        rows = sets.index.unsqueeze(-1).expand(-1, x.shape[-1])
        zeros = x.new_zeros(sets.num_rows, x.shape[-1])
        return zeros.scatter_reduce(0, rows, x.detach(), "amin", include_self=False)


def _layer(
    potential: potentials.Potential, channels: tuple[int, int], learning_rate: float,
    momentum: float, num_steps: int, *, regularizer: Regularizer | None = None,
    scaling: ScalingName = "mean", start: Start | None = None,
) -> EquilibriumAggregation:  # fmt: skip
    return EquilibriumAggregation(
        *channels, potential=potential, regularizer=0 if regularizer is None else regularizer,
        solver=Nesterov(learning_rate, momentum, learnable=False), start=start,
        steps=num_steps, scaling=scaling,
    )  # fmt: skip


def mean(
    channels: int, *, learning_rate: float = 0.5, momentum: float = 0.0, num_steps: int = 1
) -> EquilibriumAggregation:
    """The mean of each coordinate, by the potential `Mean`."""
    return _layer(potentials.Mean(), (channels, channels), learning_rate, momentum, num_steps)


def sum(
    channels: int, *, learning_rate: float = 1.0, momentum: float = 0.0, num_steps: int = 1
) -> EquilibriumAggregation:
    """The sum, by the potential `Sum`, the regulariser `|y|^2 / 2` and the scaling `"sum"`."""
    return _layer(
        potentials.Sum(), (channels, channels), learning_rate, momentum, num_steps,
        regularizer=SquaredNorm(0.5, learnable=False), scaling="sum",
    )  # fmt: skip


def median(
    channels: int, *, learning_rate: float = 0.01, momentum: float = 0.0, num_steps: int = 1000
) -> EquilibriumAggregation:
    """A median of each coordinate to within `learning_rate`, by the potential `Median`.

    The search starts at zero and ends after at most `N |median| / learning_rate` steps.
    """
    return _layer(potentials.Median(), (channels, channels), learning_rate, momentum, num_steps)


def quantile(
    channels: int, tau: float, *, learning_rate: float = 0.01, momentum: float = 0.0,
    num_steps: int = 1000,
) -> EquilibriumAggregation:  # fmt: skip
    """A `tau`-quantile of each coordinate to within `learning_rate`, by the potential `Quantile`.

    The search starts at zero.
    """
    quantile = potentials.Quantile(tau)
    return _layer(quantile, (channels, channels), learning_rate, momentum, num_steps)


def max(
    channels: int, *, learning_rate: float = 0.01, num_steps: int = 1000
) -> EquilibriumAggregation:
    """The maximum of each coordinate, or up to `learning_rate` more, by the potential `Max`.

    The search starts at the set's smallest elements and ends after at most
    `N (max - min) / learning_rate` steps. It has no momentum, which would overshoot the
    maximum, and the gradient is zero there.
    """
    both = channels, channels
    return _layer(potentials.Max(), both, learning_rate, 0.0, num_steps, start=BelowStart())


def huber(
    channels: int, delta: float = 1.0, *, learning_rate: float = 1.0, momentum: float = 0.0,
    num_steps: int = 100,
) -> EquilibriumAggregation:  # fmt: skip
    """Huber's mean of each coordinate, by the potential `Huber`. The search starts at zero and
    covers at most `delta * learning_rate` per step."""
    return _layer(potentials.Huber(delta), (channels, channels), learning_rate, momentum, num_steps)


def frechet_mean(
    channels: int, distance: Callable[[Tensor, Tensor], Tensor], *, start: Start | None = None,
    learning_rate: float = 0.1, momentum: float = 0.0, num_steps: int = 100,
) -> EquilibriumAggregation:  # fmt: skip
    """The Fréchet mean under your `distance`, by the potential `FrechetMean`.

    Args:
        start: where the search begins. Default: zero.
    """
    potential, both = potentials.FrechetMean(distance), (channels, channels)
    return _layer(potential, both, learning_rate, momentum, num_steps, start=start)


def attention(
    query: Tensor, *, shift: float = 0.0, learning_rate: float = 0.5, momentum: float = 0.0,
    num_steps: int = 100,
) -> EquilibriumAggregation:  # fmt: skip
    """The softmax-weighted mean of a set and, as one more output, its mean weight, by the
    potential `Attention`, which explains how to choose `shift` and `learning_rate`.

    Example:
        >>> x, query = torch.rand(5, 3), torch.rand(3)
        >>> y = equipool.closed_form.attention(query, shift=2.0)(x)
        >>> torch.allclose(y[0, :-1], torch.softmax(x @ query, 0) @ x, atol=1e-5)
        True
    """
    potential, channels = potentials.Attention(query, shift), query.shape[0]
    return _layer(potential, (channels, channels + 1), learning_rate, momentum, num_steps)


def power_sums(set_size: int, num_powers: int | None = None) -> EquilibriumAggregation:
    """The sums of the first powers of a set's `set_size` numbers, by the potential `PowerSums`.

    Args:
        num_powers: how many. Default: `set_size`, enough to distinguish all sets.
    """
    potential = potentials.PowerSums(set_size if num_powers is None else num_powers, set_size)
    # The curvature of the scaled energy is 2 / N^2, so this step lands on the minimum.
    return _layer(potential, (1, potential.out_channels), set_size**2 / 2, 0.0, 1)
