"""Sum, mean and maximum of a set."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.baselines.base import Rival, match_channels
from equipool.sets import Sets


class SumPooling(Rival):
    r"""$y = s \sum_{x \in X} x$, followed by a linear map if the sizes differ.

    Args:
        scale: the constant $s$. Later layers could learn it, but training works much better if the
            sum starts at the scale of one element: 1 over the usual number of elements.

    Example:
        >>> SumPooling(1, 1, scale=0.5)(torch.tensor([[1.0], [2.0], [5.0]]))
        tensor([[4.]])
    """

    def __init__(self, in_channels: int, out_channels: int, *, scale: float = 1.0) -> None:
        super().__init__(in_channels, out_channels)
        self.scale = scale
        self.linear = match_channels(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return self.linear((self.scale * sum_wide(x, sets)).to(x.dtype))


class MeanPooling(Rival):
    r"""$y = \frac{1}{N} \sum_{x \in X} x$, zero for an empty set, followed by a linear map if the
    sizes differ.

    Example:
        >>> MeanPooling(1, 1)(torch.tensor([[1.0], [2.0], [6.0]]))
        tensor([[3.]])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.linear = match_channels(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        totals = torch.where(sets.counts > 0, sets.totals, 1).unsqueeze(-1)
        return self.linear((sum_wide(x, sets) / totals).to(x.dtype))


class MaxPooling(Rival):
    r"""$y = \max_{x \in X} x$ in each channel, zero for an empty set, followed by a linear map if
    the sizes differ.

    Example:
        >>> MaxPooling(2, 2)(torch.tensor([[1.0, 5.0], [3.0, -2.0]]))
        tensor([[3., 5.]])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.linear = match_channels(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return self.linear(maximum(x, sets))


def sum_wide(x: Tensor, sets: Sets) -> Tensor:
    """The sum of each set, computed and returned in float32 or wider."""
    return sets.sum(x.to(torch.promote_types(x.dtype, torch.float32)))


def maximum(x: Tensor, sets: Sets) -> Tensor:
    """The largest value of each set and channel, `[N, C] -> [num_rows, C]`; zero for empty sets."""
    rows = sets.index.unsqueeze(-1).expand(-1, x.shape[-1])
    zeros = x.new_zeros(sets.num_rows, x.shape[-1])
    return zeros.scatter_reduce(0, rows, x, "amax", include_self=False)
