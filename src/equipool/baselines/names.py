"""Aggregations by name."""

from __future__ import annotations

from torch import nn

from equipool.aggregation import EquilibriumAggregation
from equipool.baselines.frechet import FrechetPooling
from equipool.baselines.learned import (
    AttentionPooling,
    GatedAttentionPooling,
    JanossyPooling,
    LAFPooling,
)
from equipool.baselines.packaged import PNAPooling, Set2SetPooling, SetTransformerPooling
from equipool.baselines.reductions import MaxPooling, MeanPooling, SumPooling
from equipool.checks import check_sizes

AGGREGATIONS = {
    "equilibrium": "the layer, with its defaults",
    "sum": "sum",
    "scaled-sum": "sum divided by the usual number of elements, a constant",
    "mean": "mean",
    "max": "maximum in each channel",
    "attention": "attention with learned queries, four heads",
    "gated-attention": "mean with weights from gated attention",
    "pna": "mean, minimum, maximum and standard deviation, each with three scalings",
    "laf": "quotients of learned power sums",
    "set2set": "a recurrent network that reads the set by attention",
    "set-transformer": "self-attention, then attention with a learned query",
    "janossy": "mean of a network over ordered pairs",
    "frechet": "Fréchet mean under a learned distance",
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
    match name:
        case "equilibrium":
            return EquilibriumAggregation(in_channels, out_channels)
        case "scaled-sum":
            return SumPooling(in_channels, out_channels, scale=1 / set_size)
        case "pna":
            return PNAPooling(in_channels, out_channels, sizes=[set_size])
    if name not in PLAIN:
        raise ValueError(f"the aggregation is {name!r}, expected one of {list(AGGREGATIONS)}")
    return PLAIN[name](in_channels, out_channels)


PLAIN: dict[str, type[nn.Module]] = {
    "sum": SumPooling, "mean": MeanPooling, "max": MaxPooling, "attention": AttentionPooling,
    "gated-attention": GatedAttentionPooling, "laf": LAFPooling, "set2set": Set2SetPooling,
    "set-transformer": SetTransformerPooling, "janossy": JanossyPooling, "frechet": FrechetPooling,
}  # fmt: skip
