"""Multi-head attention with learned queries."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor, nn

from equipool.baselines.base import RaggedRival
from equipool.baselines.maximum import maximum
from equipool.sets import Sets


class AttentionPooling(RaggedRival):
    r"""The attention that the paper compares with: each head $h$ has a learned query $q_h$, and

    $$y_h = \sum_i \frac{\exp(q_h \cdot k_{hi} / \sqrt d)}{\sum_j \exp(q_h \cdot k_{hj} / \sqrt d)}
    \, v_{hi}, \qquad k_{hi} = K_h x_i, \quad v_{hi} = V_h x_i,$$

    where keys, values and queries have $d$ = `out_channels / heads` dimensions. The output is the
    heads' side by side, so `in_channels` may be any; there is no map behind them. That of an empty
    set is zero.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        heads: how many; as many as divide both this number and `out_channels`.

    Example:
        >>> AttentionPooling(3, 8).heads, AttentionPooling(3, 6).heads, AttentionPooling(3, 5).heads
        (4, 2, 1)
    """

    def __init__(self, in_channels: int, out_channels: int, *, heads: int = 4) -> None:
        super().__init__(in_channels, out_channels)
        self.heads = gcd(heads, out_channels)
        self.query = nn.Parameter(torch.empty(self.heads, out_channels // self.heads))
        self.keys = nn.Linear(in_channels, out_channels, bias=False)  # a bias would cancel out
        self.values = nn.Linear(in_channels, out_channels)
        nn.init.normal_(self.query)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        size = self.query.shape[1]
        scores = (self._by_head(self.keys(x)) * self.query).sum(-1) / size**0.5
        scores = scores.to(torch.promote_types(x.dtype, torch.float32))
        weights = torch.exp(scores - sets.spread(maximum(scores.detach(), sets)))
        values = weights.unsqueeze(-1) * self._by_head(self.values(x))
        # Of the greatest score the weight is 1, so this changes empty sets alone.
        total = sets.sum(weights).clamp(min=1)
        return (sets.sum(values) / total.unsqueeze(-1)).flatten(1).to(x.dtype)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, self.query.shape)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"
