"""Solvers of a linear system for each row."""

from equipool.linear_solvers.base import LinearSolution, LinearSolver
from equipool.linear_solvers.cholesky import Cholesky
from equipool.linear_solvers.conjugate_gradients import ConjugateGradients
from equipool.linear_solvers.neumann import Neumann

__all__ = ["Cholesky", "ConjugateGradients", "LinearSolution", "LinearSolver", "Neumann"]
