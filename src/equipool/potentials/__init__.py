"""Potentials `F(x, y)`: the paper's network, two that are convex in y, and the Fréchet
mean."""

from equipool.potentials.base import AutogradSum, Potential, SummedPotential
from equipool.potentials.convex import ConvexPotential
from equipool.potentials.frechet import FrechetMean
from equipool.potentials.location import LocationPotential
from equipool.potentials.resnet import ResNetPotential

__all__ = [
    "AutogradSum", "ConvexPotential", "FrechetMean", "LocationPotential", "Potential",
    "ResNetPotential", "SummedPotential",
]  # fmt: skip
