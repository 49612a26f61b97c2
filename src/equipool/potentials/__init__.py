"""Potentials `F(x, y)`: the paper's network, one that is convex in y, and the Fréchet mean."""

from equipool.potentials.base import AutogradSum, Potential, SummedPotential
from equipool.potentials.convex import ConvexPotential
from equipool.potentials.frechet import FrechetMean
from equipool.potentials.resnet import ResNetPotential

__all__ = [
    "AutogradSum", "ConvexPotential", "FrechetMean", "Potential", "ResNetPotential",
    "SummedPotential",
]  # fmt: skip
