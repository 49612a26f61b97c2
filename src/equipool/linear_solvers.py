"""Solvers of a linear system for each row, and when their solution is accepted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.checks import as_count
from equipool.objective import LinearMap, assemble
from equipool.ops.execution import shapes_are_fixed

# A solution with a larger residual, relative to b, is rejected. Solvers aim far lower; the slack
# absorbs rounding, 2^-9 per product in bfloat16.
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
    r"""Solves $H x = b$ for each row. $H$ is symmetric and given by its products alone. Only
    positive definite systems are solved.

    A subclass must provide `attempt`, which must treat every row by itself. A system counts as
    solved only if the solution is finite and its residual small. If $b$ or $H b$ is zero, it is
    solved by the minimum-norm solution, zero.
    """

    @abstractmethod
    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        """Solve, and mark the rows that seem solved.

        `b [num_rows, K]` is finite, and the largest entry of each row that is not zero is 1 or -1.
        """

    @torch.no_grad()
    def __call__(self, product: LinearMap, b: Tensor) -> LinearSolution:
        """Solve for `b [num_rows, K]`, given the product with H."""
        scale = _largest(b).unsqueeze(-1)
        usable = (scale > 0) & (scale < torch.inf)
        unit = torch.where(usable, b / scale, 0)
        x, seems_solved, steps = self.attempt(product, unit)
        # One product serves both: the residual of a solution, and elsewhere whether H b = 0.
        probe = torch.where(seems_solved.unsqueeze(-1), x, unit)
        image = product(probe)
        nonzero = image.any(-1)
        accurate = (unit - image).norm(dim=-1) <= LARGEST_RESIDUAL * unit.norm(dim=-1)
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


class Cholesky(LinearSolver):
    """Assembles each row's matrix from K products and factors it. The solution is exact, and so is
    the answer whether the matrix is positive definite. Memory is `[num_rows, K, K]`, so use it for
    outputs of up to a few dozen.

    Example:
        >>> Cholesky()(lambda v: 4 * v, torch.tensor([[2.0, 8.0]])).x
        tensor([[0.5000, 2.0000]])
    """

    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        factor, failure = torch.linalg.cholesky_ex(assemble(product, b))
        x = torch.cholesky_solve(b.unsqueeze(-1), factor).squeeze(-1)
        largest = factor.diagonal(dim1=-2, dim2=-1).square().amax(-1)
        definite = (failure == 0) & exceeds_rounding(x, b, largest)
        return LinearSolution(x, definite, torch.full_like(failure, b.shape[-1], dtype=torch.long))


class ConjugateGradients(LinearSolver):
    r"""Conjugate gradients. After K steps the solution is exact but for rounding, and much earlier
    if the eigenvalues of $H$ lie close together. A row stops when it is solved, or when
    $p^\top H p \le 0$ for one of its directions $p$: then its matrix is not positive definite.
    Negative curvature in directions that it has not met goes unnoticed; `Cholesky` finds it.

    Args:
        max_steps: the largest number of products. Rows that need more are not solved.
        tolerance: norm of the residual, relative to that of b, at which a row is solved.

    Example:
        >>> solver = ConjugateGradients()
        >>> solver(lambda v: 4 * v, torch.tensor([[2.0, 8.0]])).x
        tensor([[0.5000, 2.0000]])
    """

    def __init__(self, max_steps: int = 100, tolerance: float = 1e-4) -> None:
        if not 0 < tolerance < LARGEST_RESIDUAL:
            raise ValueError(
                f"tolerance is {tolerance!r}, expected more than 0 and less than {LARGEST_RESIDUAL}"
            )
        self.max_steps = as_count("max_steps", max_steps, least=1)
        self.tolerance = tolerance

    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        fixed = shapes_are_fixed()
        x, residual, direction = torch.zeros_like(b), b, b
        square = torch.linalg.vecdot(b, b)
        goal, largest = self.tolerance**2 * square, torch.zeros_like(square)
        moving, steps = square > 0, torch.zeros_like(square, dtype=torch.long)
        for _ in range(self.max_steps):
            steps = steps + moving
            image = product(direction)
            along = torch.linalg.vecdot(direction, image)
            # With p = r + beta q, q being the last direction and conjugate to p, p.Hp <= r.Hr. So
            # p.Hp / r.r is at most the largest curvature. fmax ignores the NaN of a zero residual.
            largest = torch.fmax(largest, along / square)
            # Rows that stopped take steps of length zero: on a GPU few operations matter most.
            moving = moving & (along > 0)
            rate = torch.where(moving, square / along, 0).unsqueeze(-1)
            x = torch.addcmul(x, rate, direction)
            residual = torch.addcmul(residual, rate, image, value=-1)
            previous, square = square, torch.linalg.vecdot(residual, residual)
            share = torch.where(moving, square / previous, 0).unsqueeze(-1)
            direction = torch.addcmul(residual, share, direction)
            moving = moving & (square > goal)
            if not fixed and not bool(moving.any()):
                break
        solved = (square <= goal) & exceeds_rounding(x, b, largest)
        return LinearSolution(x, solved, steps)
