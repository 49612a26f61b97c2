"""Potentials `F(x, y)`: the paper's network, and those with a known minimum."""

from equipool.potentials.base import Potential
from equipool.potentials.resnet import ResNetPotential

__all__ = ["Potential", "ResNetPotential"]
