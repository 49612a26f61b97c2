"""The rivals: other pooling layers with the same call as the layer."""

from equipool.baselines.frechet import FrechetPooling
from equipool.baselines.learned import (
    AttentionPooling,
    GatedAttentionPooling,
    JanossyPooling,
    LAFPooling,
)
from equipool.baselines.names import AGGREGATIONS, aggregation_from_name
from equipool.baselines.packaged import PNAPooling, Set2SetPooling, SetTransformerPooling
from equipool.baselines.reductions import MaxPooling, MeanPooling, SumPooling

__all__ = [
    "AGGREGATIONS", "AttentionPooling", "FrechetPooling", "GatedAttentionPooling",
    "JanossyPooling", "LAFPooling", "MaxPooling", "MeanPooling", "PNAPooling", "Set2SetPooling",
    "SetTransformerPooling", "SumPooling", "aggregation_from_name",
]  # fmt: skip
