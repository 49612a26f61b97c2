"""What `equipool` exports. Importing it imports torch."""

from equipool import closed_form
from equipool.aggregation import EquilibriumAggregation
from equipool.capture import CapturedStep, capture_step
from equipool.comparison import GradientComparison, compare_gradients
from equipool.differentiation import (
    Differentiation,
    Implicit,
    OneStep,
    Truncated,
    Unrolled,
)
from equipool.linear_solvers import Cholesky, ConjugateGradients, LinearSolver, Neumann
from equipool.potentials import ConvexPotential, Potential, ResNetPotential
from equipool.regularizers import NoRegularizer, Regularizer, SquaredNorm
from equipool.solution import Solution, Solutions, record
from equipool.solvers import (
    GradientDescent,
    HeavyBall,
    Nesterov,
    Newton,
    Polished,
    RestrainedNesterov,
    SafeguardedNesterov,
    Solver,
    StronglyConvexNesterov,
)
from equipool.starts import LearnedStart, Start, ZeroStart

__all__ = [
    "CapturedStep",
    "Cholesky",
    "ConjugateGradients",
    "ConvexPotential",
    "Differentiation",
    "EquilibriumAggregation",
    "GradientComparison",
    "GradientDescent",
    "HeavyBall",
    "Implicit",
    "LearnedStart",
    "LinearSolver",
    "Nesterov",
    "Neumann",
    "Newton",
    "NoRegularizer",
    "OneStep",
    "Polished",
    "Potential",
    "Regularizer",
    "ResNetPotential",
    "RestrainedNesterov",
    "SafeguardedNesterov",
    "Solution",
    "Solutions",
    "Solver",
    "SquaredNorm",
    "Start",
    "StronglyConvexNesterov",
    "Truncated",
    "Unrolled",
    "ZeroStart",
    "capture_step",
    "closed_form",
    "compare_gradients",
    "record",
]
