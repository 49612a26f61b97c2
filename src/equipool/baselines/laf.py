"""Learnable aggregation functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.baselines.base import RaggedRival
from equipool.baselines.sums import sum_wide
from equipool.sets import Sets


class LAFPooling(RaggedRival):
    r"""Quotients of learned power sums, from [Learning Aggregation
    Functions](https://arxiv.org/abs/2012.08482): with $u = \mathrm{sigmoid}(x)$ in each channel,

    $$y = \frac{\alpha \, (\sum u^b)^a + \beta \, (\sum (1 - u)^d)^c}
    {\gamma \, (\sum u^f)^e + \delta \, (\sum (1 - u)^h)^g}.$$

    Every channel has `units` of these, and a linear map joins them. The exponents are positive, and
    so are $\gamma$ and $\delta$, which the authors leave free: so the denominator never comes near
    zero. The quotients of an empty set are zero.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        units: quotients for each channel.

    Example:
        >>> LAFPooling(3, 8)(torch.randn(5, 3)).shape
        torch.Size([1, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, units: int = 4) -> None:
        super().__init__(in_channels, out_channels)
        # one row for each of the four power sums: of u, of 1 - u, of u, of 1 - u
        shape = (4, in_channels, units)
        self.raw_inner = nn.Parameter(torch.empty(shape))  # b, d, f, h
        self.raw_outer = nn.Parameter(torch.empty(shape))  # a, c, e, g
        self.factors = nn.Parameter(torch.empty(2, in_channels, units))  # alpha, beta
        self.raw_divisors = nn.Parameter(torch.empty(2, in_channels, units))  # gamma, delta
        self.linear = nn.Linear(in_channels * units, out_channels)
        for parameter in (self.raw_inner, self.raw_outer, self.factors, self.raw_divisors):
            nn.init.normal_(parameter)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        inner, outer = functional.softplus(self.raw_inner), functional.softplus(self.raw_outer)
        # ln u and ln (1 - u), exact however large x is: [N, 2, C, 1]
        logs = torch.stack([functional.logsigmoid(x), functional.logsigmoid(-x)], 1).unsqueeze(-1)
        powers = torch.exp(inner * torch.cat([logs, logs], 1))  # [N, 4, C, units]
        # away from zero, where the slope of a power below 1 is infinite
        sums = sum_wide(powers, sets)
        sums = sums.clamp(min=torch.finfo(sums.dtype).tiny)
        occupied = (sets.counts > 0).view(-1, 1, 1, 1)
        powers = torch.where(occupied, sums, 1) ** outer
        top = (self.factors * powers[:, :2]).sum(1)
        bottom = (functional.softplus(self.raw_divisors) * powers[:, 2:]).sum(1)
        quotients = torch.where(occupied.squeeze(1), top / bottom, 0)
        return self.linear(quotients.flatten(1).to(x.dtype))
