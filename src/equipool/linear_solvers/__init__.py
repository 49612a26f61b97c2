"""Solvers of a linear system for each row."""

from equipool.linear_solvers.base import LinearSolution, LinearSolver
from equipool.linear_solvers.cholesky import Cholesky
from equipool.linear_solvers.iterative import ConjugateGradients, Neumann

__all__ = ["Cholesky", "ConjugateGradients", "LinearSolution", "LinearSolver", "Neumann"]
