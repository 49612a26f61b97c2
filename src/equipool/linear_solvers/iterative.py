"""Iterative solutions, for every row at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipool.checks import as_count
from equipool.linear_solvers.base import (
    LARGEST_RESIDUAL,
    LinearSolution,
    LinearSolver,
    exceeds_rounding,
)
from equipool.objective import LinearMap
from equipool.ops.availability import shapes_are_fixed
from equipool.rows import choose_rows

POWER_STEPS = 8

# Where the series converges, the residual falls from step to step but for rounding.
GROWTH = 1.01


class ConjugateGradients(LinearSolver):
    r"""Conjugate gradients. After K steps the solution is exact but for rounding, and much earlier
    if the eigenvalues of $H$ lie close together. A row stops when it is solved, or when
    $p^\top H p \le 0$ for one of its directions $p$: then its matrix is not positive definite.
    Negative curvature in directions that it has not met goes unnoticed; `Cholesky` finds it.

    Args:
        max_steps: the largest number of products. Rows that need more are not solved.
        tolerance: norm of the residual, relative to that of b, at which a row is solved.
        ridge: added to the diagonal of $H$.

    Example:
        >>> solver = ConjugateGradients()
        >>> solver(lambda v: 4 * v, torch.tensor([[2.0, 8.0]])).x
        tensor([[0.5000, 2.0000]])
    """

    def __init__(self, max_steps: int = 100, tolerance: float = 1e-4, ridge: float = 0.0) -> None:
        super().__init__(ridge)
        self.max_steps = as_count("max_steps", max_steps, least=1)
        self.tolerance = _checked(tolerance)

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

    def __repr__(self) -> str:
        return f"ConjugateGradients({self.max_steps}, {self.tolerance}, ridge={self.ridge})"


class Neumann(LinearSolver):
    r"""The Neumann series $x = s \sum_j (I - s H)^j b$: the backward pass of gradient descent with
    step size $s$. It converges if all eigenvalues of $H$ lie between 0 and $2 / s$, in a number of
    steps that grows with the ratio of the largest to the smallest. A row stops unsolved when its
    residual rises.

    Args:
        max_steps: the largest number of terms. Rows that need more are not solved.
        tolerance: norm of the residual, relative to that of b, at which a row is solved.
        ridge: added to the diagonal of $H$.
        step: $s$. Default: 1 / (largest eigenvalue), estimated for each row by a few products.

    Example:
        >>> solver = Neumann(max_steps=50)
        >>> solver(lambda v: 4 * v, torch.tensor([[2.0, 8.0]])).x
        tensor([[0.5000, 2.0000]])
    """

    def __init__(
        self, max_steps: int = 200, tolerance: float = 1e-4, ridge: float = 0.0,
        step: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ridge)
        if step is not None and not (math.isfinite(step) and step > 0):
            raise ValueError(f"step is {step!r}, expected a finite number above 0, or None")
        self.max_steps = as_count("max_steps", max_steps, least=1)
        self.tolerance = _checked(tolerance)
        self.step = step

    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        fixed = shapes_are_fixed()
        step = self.step if self.step is not None else 1 / _largest_eigenvalue(product, b)
        x, residual, norm = torch.zeros_like(b), b, b.norm(dim=-1)
        goal = self.tolerance * norm
        moving, steps = norm > 0, torch.zeros_like(norm, dtype=torch.long)
        for _ in range(self.max_steps):
            steps = steps + moving
            left = residual - step * product(residual)
            left_norm = left.norm(dim=-1)
            moving = moving & (left_norm <= GROWTH * norm)
            added = x + step * residual
            x, residual, norm = choose_rows(moving, (added, left, left_norm), (x, residual, norm))
            moving = moving & (norm > goal)
            if not fixed and not bool(moving.any()):
                break
        return LinearSolution(x, norm <= goal, steps)

    def __repr__(self) -> str:
        limits = f"{self.max_steps}, {self.tolerance}, ridge={self.ridge}"
        return f"Neumann({limits}, step={self.step})"


def _checked(tolerance: float) -> float:
    if not 0 < tolerance < LARGEST_RESIDUAL:
        raise ValueError(
            f"tolerance is {tolerance!r}, expected more than 0 and less than {LARGEST_RESIDUAL}"
        )
    return tolerance


def _largest_eigenvalue(product: LinearMap, b: Tensor) -> Tensor:
    """The absolute value of the largest eigenvalue of each row, `[num_rows, 1]`, by power
    iteration. The estimate is from below, and more than half of it is enough.

    The iteration starts near b, but not at it, since b may be orthogonal to the eigenvector.
    """
    offset = torch.linspace(1, 2, b.shape[-1], dtype=b.dtype, device=b.device)
    direction = b + torch.where(b < 0, -offset, offset)
    for _ in range(POWER_STEPS):
        direction = product(direction / direction.norm(dim=-1, keepdim=True))
    return direction.norm(dim=-1, keepdim=True)
