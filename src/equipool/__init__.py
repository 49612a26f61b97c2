"""Equilibrium Aggregation: pooling sets by minimising a learned energy.

>>> layer = equipool.EquilibriumAggregation(in_channels=3, out_channels=8)
>>> layer(torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])).shape
torch.Size([2, 8])
"""

from equipool import closed_form
from equipool.aggregation import EquilibriumAggregation
from equipool.capture import CapturedStep, capture_step
from equipool.differentiation import Differentiation, OneStep, Truncated, Unrolled
from equipool.potentials import Potential, ResNetPotential
from equipool.regularizers import NoRegularizer, Regularizer, SquaredNorm
from equipool.solution import Solution, Solutions, record
from equipool.solvers import HeavyBall, Nesterov, Solver
from equipool.starts import LearnedStart, Start, ZeroStart

__version__ = "0.1.0"

__all__ = [
    "CapturedStep",
    "Differentiation",
    "EquilibriumAggregation",
    "HeavyBall",
    "LearnedStart",
    "Nesterov",
    "NoRegularizer",
    "OneStep",
    "Potential",
    "Regularizer",
    "ResNetPotential",
    "Solution",
    "Solutions",
    "Solver",
    "SquaredNorm",
    "Start",
    "Truncated",
    "Unrolled",
    "ZeroStart",
    "capture_step",
    "closed_form",
    "record",
]
