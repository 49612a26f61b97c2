"""Inner optimisers."""

from equipool.solvers.base import Solver, SolverState
from equipool.solvers.exact import Exact
from equipool.solvers.momentum import GradientDescent, Nesterov
from equipool.solvers.newton import Newton
from equipool.solvers.safeguarded import SafeguardedNesterov
from equipool.solvers.strongly_convex import StronglyConvexNesterov

__all__ = [
    "Exact", "GradientDescent", "Nesterov", "Newton", "SafeguardedNesterov", "Solver",
    "SolverState", "StronglyConvexNesterov",
]  # fmt: skip
