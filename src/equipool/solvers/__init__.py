"""Inner optimisers."""

from equipool.solvers.base import Solver, SolverState
from equipool.solvers.momentum import GradientDescent, HeavyBall, Nesterov, RestrainedNesterov
from equipool.solvers.newton import Newton, Polished
from equipool.solvers.safeguarded import SafeguardedNesterov
from equipool.solvers.strongly_convex import StronglyConvexNesterov

__all__ = [
    "GradientDescent", "HeavyBall", "Nesterov", "Newton", "Polished", "RestrainedNesterov",
    "SafeguardedNesterov", "Solver", "SolverState", "StronglyConvexNesterov",
]  # fmt: skip
