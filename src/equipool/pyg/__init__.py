"""Aggregations for PyTorch Geometric, and the conversion of its own equilibrium layer."""

try:
    import torch_geometric.nn.aggr  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "equipool.pyg needs PyTorch Geometric: pip install 'equipool[pyg]'", name=error.name
    ) from error

from equipool.pyg.adapter import EquilibriumAggregation
from equipool.pyg.conversion import InputSkipPotential, from_pyg
from equipool.pyg.statistics import LocationAggregation, MedianAggregation, QuantileAggregation

__all__ = [
    "EquilibriumAggregation", "InputSkipPotential", "LocationAggregation", "MedianAggregation",
    "QuantileAggregation", "from_pyg",
]  # fmt: skip
