"""Potentials `F(x, y)`: the paper's network, and those with a known minimum."""

from equipool.potentials.base import AutogradSum, Potential, SummedPotential
from equipool.potentials.closed_form import (
    Attention,
    FrechetMean,
    Huber,
    Max,
    Mean,
    Median,
    PowerSums,
    Quantile,
    Sum,
)
from equipool.potentials.convex import ConvexPotential
from equipool.potentials.resnet import ResNetPotential

__all__ = [
    "Attention", "AutogradSum", "ConvexPotential", "FrechetMean", "Huber", "Max", "Mean", "Median",
    "Potential", "PowerSums", "Quantile", "ResNetPotential", "Sum", "SummedPotential",
]  # fmt: skip
