"""Janossy pooling of pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipool.baselines.base import DenseRival


class JanossyPooling(DenseRival):
    r"""The mean of a small network over all ordered pairs, from [Janossy
    Pooling](https://arxiv.org/abs/1811.01900):

    $$y = \frac{1}{N (N - 1)} \sum_{i \ne j} f(x_i, x_j), \qquad
    f(x, x') = W \, \mathrm{relu}(A x + B x' + b) + c.$$

    A single element is paired with itself. The output of an empty set is $c$. The last layer of $f$
    is applied to the mean, which is the same and cheaper. Time and memory grow with
    `B * L^2 * hidden`.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        hidden: width of the network. Default: `out_channels`.

    Example:
        >>> JanossyPooling(3, 8)(torch.randn(5, 3)).shape
        torch.Size([1, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, hidden: int | None = None) -> None:
        super().__init__(in_channels, out_channels)
        hidden = hidden if hidden is not None else out_channels
        self.first = nn.Linear(in_channels, hidden)
        self.second = nn.Linear(in_channels, hidden, bias=False)
        self.last = nn.Linear(hidden, out_channels)

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        pairs = torch.relu(self.first(x).unsqueeze(2) + self.second(x).unsqueeze(1))
        allowed = allowed_pairs(mask)
        total = torch.einsum("bij,bijh->bh", allowed.to(pairs.dtype), pairs)
        return self.last(total / allowed.sum((1, 2)).clamp(min=1).unsqueeze(-1))


def allowed_pairs(mask: Tensor) -> Tensor:
    """Which ordered pairs of places enter the mean, `[B, L] -> [B, L, L]`."""
    counts = mask.sum(-1).view(-1, 1, 1)
    same = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    return mask.unsqueeze(1) & mask.unsqueeze(2) & (~same | (counts == 1))
