"""Inner optimisers."""

from equipool.solvers.base import Solver, SolverState
from equipool.solvers.gradient_descent import GradientDescent
from equipool.solvers.momentum import HeavyBall, Momentum, Nesterov
from equipool.solvers.newton import Newton
from equipool.solvers.polished import Polished
from equipool.solvers.restrained import RestrainedNesterov
from equipool.solvers.safeguarded import SafeguardedNesterov
from equipool.solvers.strongly_convex import StronglyConvexNesterov

__all__ = [
    "GradientDescent",
    "HeavyBall",
    "Momentum",
    "Nesterov",
    "Newton",
    "Polished",
    "RestrainedNesterov",
    "SafeguardedNesterov",
    "Solver",
    "SolverState",
    "StronglyConvexNesterov",
]
