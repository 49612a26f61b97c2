"""Attention, softmax, quantiles and learnable aggregation functions, with linear maps."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from equipool.baselines.base import Rival, match_channels
from equipool.baselines.reductions import maximum, sum_wide
from equipool.functional import quantile
from equipool.sets import Sets

LEVELS = 0.1, 0.5, 0.9


class AttentionPooling(Rival):
    r"""The attention that the paper compares with: each head $h$ has a learned query $q_h$, and

    $$y_h = \sum_i \frac{\exp(q_h \cdot k_{hi} / \sqrt d)}{\sum_j \exp(q_h \cdot k_{hj} / \sqrt d)}
    \, v_{hi}, \qquad k_{hi} = K_h x_i, \quad v_{hi} = V_h x_i,$$

    where keys, values and queries have $d$ = `out_channels / heads` dimensions. The outputs of the
    heads are concatenated, without a further map. The output of an empty set is zero.

    Args:
        heads: the number of heads, reduced to the largest that divides both it and `out_channels`.

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
        shape = self.query.shape
        scores = (self.keys(x).unflatten(-1, shape) * self.query).sum(-1) / shape[1] ** 0.5
        weights = softmax(scores, sets)
        values = weights.unsqueeze(-1) * self.values(x).unflatten(-1, shape)
        return sets.sum(values).flatten(1).to(x.dtype)


class GatedAttentionPooling(Rival):
    r"""Gated attention, from [Attention-based Deep Multiple Instance
    Learning](https://arxiv.org/abs/1802.04712): the mean of the elements with learned weights,

    $$y = \sum_i a_i x_i, \qquad
    a_i = \mathrm{softmax}_i \, w \cdot (\tanh(V x_i + b) \odot \mathrm{sigmoid}(U x_i + c)),$$

    followed by a linear map if the sizes differ. The output of an empty set is that of zero.

    Args:
        hidden: rows of $V$ and $U$.

    Example:
        >>> GatedAttentionPooling(2, 2)(torch.ones(3, 2)).detach()
        tensor([[1., 1.]])
    """

    def __init__(self, in_channels: int, out_channels: int, *, hidden: int = 64) -> None:
        super().__init__(in_channels, out_channels)
        self.content = nn.Linear(in_channels, hidden)
        self.gate = nn.Linear(in_channels, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)  # a bias would cancel out
        self.linear = match_channels(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        scores = self.score(torch.tanh(self.content(x)) * torch.sigmoid(self.gate(x)))
        return self.linear(sets.sum(softmax(scores, sets) * x).to(x.dtype))


class SoftmaxPooling(Rival):
    r"""Softmax aggregation, from [DeeperGCN](https://arxiv.org/abs/2006.07739): in each channel the
    mean of the elements with weights of their own values, from the mean at $t = 0$ to the maximum,

    $$y = \sum_i \mathrm{softmax}_i(t x_i) \, x_i,$$

    where $t$ is learned for each channel and 1 at first, followed by a linear map of it. As PyTorch
    Geometric's `SoftmaxAggregation`. The output of an empty set is that of zero.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.temperature = nn.Parameter(torch.ones(in_channels))
        self.linear = nn.Linear(in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return self.linear(sets.sum(softmax(self.temperature * x, sets) * x).to(x.dtype))


class QuantilePooling(Rival):
    """The quantiles 0.1, 0.5 and 0.9 of each channel, interpolated linearly, followed by a linear
    map. They are those of PyTorch Geometric's `QuantileAggregation`, but computed by
    `equipool.functional.quantile`, which is faster and takes empty sets, whose quantiles are zero.
    """

    takes_weights = False  # two copies of an element move what is interpolated

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.linear = nn.Linear(len(LEVELS) * in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        found = quantile(x, LEVELS, sets).flatten(1)  # of real sets alone
        return self.linear(sets.padded_rows(found))


def softmax(scores: Tensor, sets: Sets) -> Tensor:
    """Softmax over the elements of each set, in float32 or wider: `[N, H] -> [N, H]`."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    weights = torch.exp(scores - sets.spread(maximum(scores.detach(), sets)))
    return weights / sets.spread(sets.sum(weights))


class LAFPooling(Rival):
    r"""Quotients of learned power sums, from [Learning Aggregation
    Functions](https://arxiv.org/abs/2012.08482): with $u = \mathrm{sigmoid}(x)$ in each channel,

    $$y = \frac{\alpha \, (\sum u^b)^a + \beta \, (\sum (1 - u)^d)^c}
    {\gamma \, (\sum u^f)^e + \delta \, (\sum (1 - u)^h)^g}.$$

    Every channel has `units` of them, combined by a linear map. The exponents are positive, and so
    are $\gamma$ and $\delta$, which the authors leave free: this keeps the denominator away from
    zero. The quotients of an empty set are zero.

    Args:
        units: quotients per channel.
    """

    def __init__(self, in_channels: int, out_channels: int, *, units: int = 4) -> None:
        super().__init__(in_channels, out_channels)
        # One row for each of the four power sums: of u, of 1 - u, of u, of 1 - u.
        shape = (4, in_channels, units)
        self.raw_inner = nn.Parameter(torch.empty(shape))  # b, d, f, h
        self.raw_outer = nn.Parameter(torch.empty(shape))  # a, c, e, g
        self.factors = nn.Parameter(torch.empty(2, in_channels, units))  # alpha, beta
        self.raw_divisors = nn.Parameter(torch.empty(2, in_channels, units))  # gamma, delta
        self.linear = nn.Linear(in_channels * units, out_channels)
        for parameter in (self.raw_inner, self.raw_outer, self.factors, self.raw_divisors):
            nn.init.normal_(parameter)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        # ln u and ln (1 - u), exact however large x is: [N, 2, C, 1]
        logs = torch.stack([logsigmoid(x), logsigmoid(-x)], 1).unsqueeze(-1)
        powers = torch.exp(softplus(self.raw_inner) * torch.cat([logs, logs], 1))
        sums = sum_wide(powers, sets)  # [num_rows, 4, C, units]
        # At zero the slope of a power below 1 is infinite.
        sums = sums.clamp(min=torch.finfo(sums.dtype).tiny)
        occupied = (sets.counts > 0).view(-1, 1, 1, 1)
        powers = torch.where(occupied, sums, 1) ** softplus(self.raw_outer)
        top = (self.factors * powers[:, :2]).sum(1)
        bottom = (softplus(self.raw_divisors) * powers[:, 2:]).sum(1)
        quotients = torch.where(occupied.squeeze(1), top / bottom, 0)
        return self.linear(quotients.flatten(1).to(x.dtype))
