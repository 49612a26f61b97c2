"""The base class of linear solvers, and when their solution is accepted."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import LinearMap

# A solution with a larger residual, relative to b, is rejected. The solvers aim at much less; the
# rest is room for rounding, 2^-9 per product in bfloat16.
LARGEST_RESIDUAL = 0.05

# Curvature along a solution of less than this many units of rounding, relative to the largest, may
# be rounding alone.
ROUNDINGS = 32


class LinearSolution(NamedTuple):
    """Solutions of the systems of all rows."""

    x: Tensor  # [num_rows, K] zero where the system was not solved
    solved: Tensor  # [num_rows] whether it was
    steps: Tensor  # [num_rows] number of products with a row's matrix


class LinearSolver(ABC):
    r"""Solves $(H + \rho I) x = b$ for each row. $H$ is symmetric and given by its products alone.
    Only positive definite systems are solved.

    A subclass must provide `attempt`, which must treat every row by itself. A system counts as
    solved only if the solution is finite and its residual small. A row with $b = 0$ is solved by
    $x = 0$, and so is one with $H b = 0$: of all $x$ with the smallest residual, zero is the
    shortest.

    Args:
        ridge: $\rho$, 0 or more. It bounds the solution, $\lVert x \rVert \le \lVert b \rVert /
            \rho$ if no eigenvalue of $H$ is negative, and makes it approximate.
    """

    def __init__(self, ridge: float = 0.0) -> None:
        if not (math.isfinite(ridge) and ridge >= 0):
            raise ValueError(f"ridge is {ridge!r}, expected a finite number of 0 or more")
        self.ridge = ridge

    @abstractmethod
    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        """Solve, with the ridge included in the product, and mark the rows that seem solved.

        `b [num_rows, K]` is finite, and the largest entry of each row that is not zero is 1 or -1.
        """

    @torch.no_grad()
    def __call__(self, product: LinearMap, b: Tensor) -> LinearSolution:
        """Solve for `b [num_rows, K]`, given the product with H."""
        scale = _largest(b).unsqueeze(-1)
        usable = (scale > 0) & (scale < torch.inf)
        unit = torch.where(usable, b / scale, 0)

        def with_ridge(v: Tensor) -> Tensor:
            return product(v) + self.ridge * v

        x, seems_solved, steps = self.attempt(with_ridge if self.ridge else product, unit)
        # One product serves both: the residual of a solution, and elsewhere whether H b = 0.
        probe = torch.where(seems_solved.unsqueeze(-1), x, unit)
        image = product(probe)
        nonzero = image.any(-1)
        residual = unit - (image + self.ridge * probe if self.ridge else image)
        accurate = residual.norm(dim=-1) <= LARGEST_RESIDUAL * unit.norm(dim=-1)
        solution = scale * x
        accepted = nonzero & seems_solved & accurate & (_largest(solution) < torch.inf)
        solved = torch.where(usable.squeeze(-1), accepted | ~nonzero, (scale == 0).squeeze(-1))
        return LinearSolution(torch.where(accepted.unsqueeze(-1), solution, 0), solved, steps)


def _largest(rows: Tensor) -> Tensor:
    """The largest absolute value of each row, `[num_rows]`; NaN if one of its entries is."""
    return torch.linalg.vector_norm(rows, torch.inf, dim=-1)


def exceeds_rounding(x: Tensor, b: Tensor, largest: Tensor) -> Tensor:
    """Whether the curvature along a solution, `x.b / x.x`, is more than the rounding of a matrix
    whose largest curvature is given, `[num_rows]`. Otherwise the matrix might be singular."""
    rounding = ROUNDINGS * torch.finfo(x.dtype).eps * largest
    return (x * b).sum(-1) >= rounding * x.square().sum(-1)
