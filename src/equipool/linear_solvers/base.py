"""The base class of linear solvers, and when their solution is accepted."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.checks import as_count
from equipool.objective import LinearMap

# A solution whose residual is a larger part of b is not believed, whatever its solver says. The
# solvers aim at much less; what separates the two is rounding, 2^-9 a product in bfloat16.
BELIEVED_RESIDUAL = 0.05

# Along a solution, curvature of less than so many units of rounding, beside the largest, may be
# nothing but rounding.
ROUNDINGS = 32


class LinearSolution(NamedTuple):
    """Solutions of the systems of all rows."""

    x: Tensor  # [num_rows, K] zero where the system was not solved
    solved: Tensor  # [num_rows] whether it was
    steps: Tensor  # [num_rows] products taken with a row's matrix


class LinearSolver(ABC):
    r"""Solves $(H + \rho I) x = b$ for each row, $H$ being symmetric, known by its products alone,
    and positive definite where there is to be a solution.

    A subclass must provide `attempt`, which must treat every row by itself. A system counts as
    solved only if the solution is finite and its residual small. A row with $b = 0$ is solved by
    $x = 0$, and so is one with $H b = 0$: of all $x$ with the smallest residual, zero is the
    shortest.

    Args:
        ridge: $\rho$, 0 or more. It bounds the solution, $\lVert x \rVert \le \lVert b \rVert /
            \rho$ where no eigenvalue of $H$ is negative, and makes it an approximate one.
    """

    def __init__(self, ridge: float = 0.0) -> None:
        if not (math.isfinite(ridge) and ridge >= 0):
            raise ValueError(f"ridge is {ridge!r}, expected a finite number of 0 or more")
        self.ridge = ridge

    @abstractmethod
    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        """Solve with the ridge in the product, and mark the rows that seem solved.

        `b [num_rows, K]` is finite, and of each row that is not zero the largest entry is 1 or -1.
        """

    @torch.no_grad()
    def __call__(self, product: LinearMap, b: Tensor) -> LinearSolution:
        """Solve for `b [num_rows, K]`, given the product with H."""
        scale = _largest(b).unsqueeze(-1)
        usable = (scale > 0) & (scale < torch.inf)
        unit = torch.where(usable, b / scale, 0)
        x, seems_solved, steps = self.attempt(self._with_ridge(product), unit)
        # One product serves both: the residual where there is a solution, and elsewhere whether
        # there is anything to be solved.
        probe = torch.where(seems_solved.unsqueeze(-1), x, unit)
        image = product(probe)
        something = image.any(-1)
        residual = unit - (image if self.ridge == 0 else image + self.ridge * probe)
        believed = residual.norm(dim=-1) <= BELIEVED_RESIDUAL * unit.norm(dim=-1)
        solution = scale * x
        kept = something & seems_solved & believed & (_largest(solution) < torch.inf)
        solved = torch.where(usable.squeeze(-1), kept | ~something, (scale == 0).squeeze(-1))
        return LinearSolution(torch.where(kept.unsqueeze(-1), solution, 0), solved, steps)

    def _with_ridge(self, product: LinearMap) -> LinearMap:
        if self.ridge == 0:
            return product
        return lambda v: product(v) + self.ridge * v


def _largest(rows: Tensor) -> Tensor:
    """The size of the largest entry of each row, `[num_rows]`; NaN where one of them is."""
    return torch.linalg.vector_norm(rows, torch.inf, dim=-1)


def exceeds_rounding(x: Tensor, b: Tensor, largest: Tensor) -> Tensor:
    """Whether the curvature along a solution, `x.b / x.x`, is more than the rounding of a matrix
    whose largest curvature is given, `[num_rows]`. Otherwise the matrix might be singular."""
    rounding = ROUNDINGS * torch.finfo(x.dtype).eps * largest
    return (x * b).sum(-1) >= rounding * x.square().sum(-1)


def check_iteration(max_steps: int, tolerance: float) -> None:
    """Reject meaningless limits of an iteration."""
    as_count("max_steps", max_steps, least=1)
    if not 0 < tolerance < BELIEVED_RESIDUAL:
        raise ValueError(
            f"tolerance is {tolerance!r}, expected more than 0 and less than {BELIEVED_RESIDUAL}"
        )
