"""The rivals: other ways to pool sets, behind the layer's own call."""

from equipool.baselines.attention import AttentionPooling
from equipool.baselines.frechet import FrechetPooling
from equipool.baselines.janossy import JanossyPooling
from equipool.baselines.laf import LAFPooling
from equipool.baselines.maximum import MaxPooling
from equipool.baselines.names import AGGREGATIONS, aggregation_from_name
from equipool.baselines.packaged import PNAPooling, Set2SetPooling, SetTransformerPooling
from equipool.baselines.sums import MeanPooling, SumPooling

__all__ = [
    "AGGREGATIONS",
    "AttentionPooling",
    "FrechetPooling",
    "JanossyPooling",
    "LAFPooling",
    "MaxPooling",
    "MeanPooling",
    "PNAPooling",
    "Set2SetPooling",
    "SetTransformerPooling",
    "SumPooling",
    "aggregation_from_name",
]
