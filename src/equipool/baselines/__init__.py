"""The rivals: other pooling layers with the same call as the layer; and all of them by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from equipool.aggregation import EquilibriumAggregation
from equipool.baselines.learned import (
    AttentionPooling,
    GatedAttentionPooling,
    LAFPooling,
    QuantilePooling,
    SoftmaxPooling,
)
from equipool.baselines.packaged import PNAPooling, Set2SetPooling, SetTransformerPooling
from equipool.baselines.reductions import MaxPooling, MeanPooling, SumPooling
from equipool.checks import check_sizes
from equipool.pooling import LocationPooling

__all__ = [
    "AGGREGATIONS", "AttentionPooling", "GatedAttentionPooling", "LAFPooling", "MaxPooling",
    "MeanPooling", "PNAPooling", "QuantilePooling", "Set2SetPooling", "SetTransformerPooling",
    "SoftmaxPooling", "SumPooling", "aggregation_from_name",
]  # fmt: skip

AGGREGATIONS: dict[str, Callable[..., nn.Module]] = {
    "equilibrium": EquilibriumAggregation,  # with its defaults
    "location": LocationPooling,
    "sum": SumPooling,
    "scaled-sum": SumPooling,  # divided by the usual number of elements, a constant
    "mean": MeanPooling,
    "max": MaxPooling,
    "quantile": QuantilePooling,
    "softmax": SoftmaxPooling,
    "attention": AttentionPooling,
    "gated-attention": GatedAttentionPooling,
    "pna": PNAPooling,
    "laf": LAFPooling,
    "set2set": Set2SetPooling,
    "set-transformer": SetTransformerPooling,
}


def aggregation_from_name(
    name: str, in_channels: int, out_channels: int, *, set_size: int = 100
) -> nn.Module:
    """The layer or one of its rivals, with the same call: `x [N, in_channels]` in any layout ->
    `[B, out_channels]`.

    Args:
        name: one of `AGGREGATIONS`.
        in_channels: size of an element.
        out_channels: size of a set's output.
        set_size: the usual number of elements. `scaled-sum` divides by it, and `pna` scales by set
            sizes relative to it; the others ignore it.

    Example:
        >>> layer = aggregation_from_name("mean", 3, 8)
        >>> layer(torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])).shape
        torch.Size([2, 8])
    """
    check_sizes(set_size=set_size)
    if name not in AGGREGATIONS:
        raise ValueError(f"the aggregation is {name!r}, expected one of {list(AGGREGATIONS)}")
    sized: dict[str, dict[str, Any]] = {
        "scaled-sum": {"scale": 1 / set_size},
        "pna": {"sizes": [set_size]},
    }
    return AGGREGATIONS[name](in_channels, out_channels, **sized.get(name, {}))
