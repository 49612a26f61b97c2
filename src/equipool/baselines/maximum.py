"""The largest element of a set, in each channel."""

from __future__ import annotations

from torch import Tensor

from equipool.baselines.base import RaggedRival, match_channels
from equipool.sets import Sets


class MaxPooling(RaggedRival):
    r"""$y = \max_{x \in X} x$ in each channel, zero of an empty set, and a linear map behind it
    where the sizes differ.

    Example:
        >>> MaxPooling(2, 2)(torch.tensor([[1.0, 5.0], [3.0, -2.0]]))
        tensor([[3., 5.]])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.linear = match_channels(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return self.linear(maximum(x, sets))


def maximum(x: Tensor, sets: Sets) -> Tensor:
    """The largest value of each set and channel, `[N, C] -> [num_rows, C]`; zero of none."""
    rows = sets.index.unsqueeze(-1).expand(-1, x.shape[-1])
    zeros = x.new_zeros(sets.num_rows, x.shape[-1])
    return zeros.scatter_reduce(0, rows, x, "amax", include_self=False)
