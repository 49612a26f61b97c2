"""Rivals from PyTorch Geometric."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.baselines.base import Rival, match_channels
from equipool.extras import check_extras
from equipool.sets import Sets

AGGREGATORS = ["mean", "min", "max", "std"]
SCALERS = ["identity", "amplification", "attenuation"]


def geometric() -> Any:
    """The aggregations of PyTorch Geometric."""
    check_extras("this", {"pyg": ["torch_geometric"]})
    from torch_geometric.nn import aggr

    return aggr


class PNAPooling(Rival):
    r"""[Principal neighbourhood aggregation](https://arxiv.org/abs/2004.05718): mean, minimum,
    maximum and standard deviation of each channel, each unscaled, times $\ln(N + 1) / a$ and times
    $a / \ln(N + 1)$, and a linear map of the twelve. Computed by `DegreeScalerAggregation`. All
    twelve are zero for an empty set.

    Args:
        sizes: set sizes as in the training data; $a$ is the mean of their $\ln(N + 1)$. It does
            not come from the batch, because no output may depend on other sets.
    """

    takes_weights = False

    def __init__(
        self, in_channels: int, out_channels: int, *, sizes: Sequence[int] = (100,)
    ) -> None:
        super().__init__(in_channels, out_channels)
        histogram = torch.bincount(torch.tensor(sizes))
        self.aggregation = geometric().DegreeScalerAggregation(AGGREGATORS, SCALERS, histogram)
        self.linear = nn.Linear(len(AGGREGATORS) * len(SCALERS) * in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return self.linear(self.aggregation(x, sets.index, dim_size=sets.num_rows))


class Set2SetPooling(Rival):
    """[Set2Set](https://arxiv.org/abs/1511.06391): a recurrent network that reads the set by
    attention several times, and a linear map of its `2 * in_channels` outputs. Computed by
    `Set2Set`. For an empty set it reads zeros.

    Args:
        num_steps: how often the set is read.
    """

    takes_weights = False

    def __init__(self, in_channels: int, out_channels: int, *, num_steps: int = 3) -> None:
        super().__init__(in_channels, out_channels)
        self.aggregation = geometric().Set2Set(in_channels, num_steps)
        self.linear = nn.Linear(2 * in_channels, out_channels)

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        # One row more, because the recurrent network rejects an empty batch.
        y = self.aggregation(x, sets.index, dim_size=sets.num_rows + 1)
        return self.linear(y[: sets.num_rows])


class SetTransformerPooling(Rival):
    """The pooling of the [Set Transformer](https://arxiv.org/abs/1810.00825): self-attention among
    the elements, attention from a learned seed to them, self-attention of the result, and a linear
    map if the sizes differ. Computed by the parts of `SetTransformerAggregation`, called one by one
    because attention to no elements is undefined: for an empty set, zero enters the linear map.
    Time and memory grow with `B * L^2`. A padded `x [B, L, C]` gives the length `L`. In the other
    layouts it is that of the longest set, and reading it waits for the device.

    Args:
        heads: the number of heads, reduced to the largest that divides both it and `in_channels`.
    """

    takes_weights = False

    def __init__(self, in_channels: int, out_channels: int, *, heads: int = 4) -> None:
        super().__init__(in_channels, out_channels)
        self.aggregation = geometric().SetTransformerAggregation(
            in_channels, heads=gcd(heads, in_channels)
        )
        self.linear = match_channels(in_channels, out_channels)

    def pool_sets(self, x: Tensor, sets: Sets, length: int | None) -> Tensor:
        if length is None:
            length = int(sets.counts.max()) if sets.num_rows else 0
        x, mask = pad_sets(x, sets, length)
        # One empty set more, because attention rejects an empty batch.
        x, mask = functional.pad(x, (0, 0, 0, 0, 0, 1)), functional.pad(mask, (0, 0, 0, 1))
        occupied = mask.any(-1, keepdim=True)
        # An empty set attends to one zero, because attention to nothing may be NaN.
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        mask = mask | (first & ~occupied)
        for encoder in self.aggregation.encoders:
            x = encoder(x, mask)
        x = self.aggregation.pma(x, mask)
        for decoder in self.aggregation.decoders:
            x = decoder(x)
        return self.linear(torch.where(occupied, x.squeeze(1), 0)[:-1])


def pad_sets(x: Tensor, sets: Sets, length: int) -> tuple[Tensor, Tensor]:
    """The elements of each set, padded with zeros, `[num_sets, L, C]`, and which of them are real,
    `[num_sets, L]`; `L` is `length`, but at least 1."""
    length = max(length, 1)
    position = torch.arange(sets.num_elements, device=x.device) - sets.ptr[sets.index]
    size = sets.num_sets * length
    # Elements of the padding row go to one position more, which is cut off.
    position = torch.where(sets.index < sets.num_sets, sets.index * length + position, size)
    dense = x.new_zeros(size + 1, x.shape[-1]).index_add(0, position, x)
    mask = torch.arange(length, device=x.device) < sets.real(sets.counts).unsqueeze(-1)
    return dense[:size].view(sets.num_sets, length, x.shape[-1]), mask
