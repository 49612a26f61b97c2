"""The Neumann series, for every row at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipool.linear_solvers.base import LinearSolution, LinearSolver, check_iteration
from equipool.objective import LinearMap
from equipool.ops.availability import shapes_are_fixed
from equipool.rows import choose_rows

POWER_STEPS = 8

# The residual falls from step to step where the series converges, but for rounding.
GROWTH = 1.01


class Neumann(LinearSolver):
    r"""The Neumann series $x = s \sum_j (I - s H)^j b$: the steps of a gradient descent that is
    run backwards. It converges where all eigenvalues of $H$ lie between 0 and $2 / s$, in steps
    that grow with the ratio of the largest to the smallest. A row is given up when its residual
    rises.

    Args:
        max_steps: terms at most. Rows that need more are not solved.
        tolerance: norm of the residual, relative to that of b, at which a row is done.
        ridge: added to the diagonal of $H$.
        step: $s$. Default: 1 / (largest eigenvalue), of each row, found by a few products.

    Example:
        >>> solver = Neumann(max_steps=50)
        >>> solver(lambda v: 4 * v, torch.tensor([[2.0, 8.0]])).x
        tensor([[0.5000, 2.0000]])
    """

    def __init__(
        self,
        max_steps: int = 200,
        tolerance: float = 1e-4,
        ridge: float = 0.0,
        step: float | None = None,
    ) -> None:
        super().__init__(ridge)
        check_iteration(max_steps, tolerance)
        if step is not None and not (math.isfinite(step) and step > 0):
            raise ValueError(f"step is {step!r}, expected a finite number above 0, or None")
        self.max_steps = max_steps
        self.tolerance = tolerance
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


def _largest_eigenvalue(product: LinearMap, b: Tensor) -> Tensor:
    """The size of the largest eigenvalue of each row, `[num_rows, 1]`, by power iteration. It is
    too small at first, and serves when it is more than half of the true one.

    The search begins beside b, which may lie across the eigenvector; no component cancels.
    """
    beside = torch.linspace(1, 2, b.shape[-1], dtype=b.dtype, device=b.device)
    direction = b + torch.where(b < 0, -beside, beside)
    for _ in range(POWER_STEPS):
        direction = product(direction / direction.norm(dim=-1, keepdim=True))
    return direction.norm(dim=-1, keepdim=True)
