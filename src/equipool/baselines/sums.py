"""Sums of a set: sum, sum times a constant, mean."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.baselines.base import RaggedRival, match_channels
from equipool.sets import Sets


class SumPooling(RaggedRival):
    r"""$y = s \sum_{x \in X} x$, and a linear map behind it where the sizes differ.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        scale: the constant $s$. The network behind could learn it, but trains much better where
            the sum starts at the size of one element: 1 over the usual number of elements.

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

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale:g}"


class MeanPooling(RaggedRival):
    r"""$y = \frac{1}{N} \sum_{x \in X} x$, zero of an empty set, and a linear map behind it where
    the sizes differ.

    Example:
        >>> MeanPooling(1, 1)(torch.tensor([[1.0], [2.0], [6.0]]))
        tensor([[3.]])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.linear = match_channels(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        counts = sets.counts.clamp(min=1).unsqueeze(-1)
        return self.linear((sum_wide(x, sets) / counts).to(x.dtype))


def sum_wide(x: Tensor, sets: Sets) -> Tensor:
    """The sum of each set, taken and returned in float32 at least."""
    return sets.sum(x.to(torch.promote_types(x.dtype, torch.float32)))
