"""Conjugate gradients, for every row at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.linear_solvers.base import (
    ROUNDINGS,
    LinearSolution,
    LinearSolver,
    check_iteration,
)
from equipool.objective import LinearMap
from equipool.ops.fixed_shapes import shapes_are_fixed
from equipool.rows import choose_rows


class _State(NamedTuple):
    x: Tensor  # [num_rows, K]
    residual: Tensor  # [num_rows, K]
    direction: Tensor  # [num_rows, K]
    square: Tensor  # [num_rows] squared norm of the residual
    largest: Tensor  # [num_rows] largest curvature met


class ConjugateGradients(LinearSolver):
    r"""Conjugate gradients. After K steps the solution is exact but for rounding, and much earlier
    where the eigenvalues of $H$ lie close together. A row stops when it is done, and is given up
    where $p^\top H p \le 0$ for one of its directions $p$: its matrix is not positive definite.
    What lies in no direction it has met, it cannot see; `Cholesky` can.

    Args:
        max_steps: products at most. Rows that need more are not solved.
        tolerance: norm of the residual, relative to that of b, at which a row is done.
        ridge: added to the diagonal of $H$.

    Example:
        >>> solver = ConjugateGradients()
        >>> solver(lambda v: 4 * v, torch.tensor([[2.0, 8.0]])).x
        tensor([[0.5000, 2.0000]])
    """

    def __init__(self, max_steps: int = 100, tolerance: float = 1e-4, ridge: float = 0.0) -> None:
        super().__init__(ridge)
        check_iteration(max_steps, tolerance)
        self.max_steps = max_steps
        self.tolerance = tolerance

    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        square = b.square().sum(-1)
        goal = self.tolerance**2 * square
        state = _State(torch.zeros_like(b), b, b, square, torch.zeros_like(square))
        moving, steps = square > 0, torch.zeros_like(square, dtype=torch.long)
        for _ in range(self.max_steps):
            steps = steps + moving
            stepped, curved = _step(product, state)
            moving = moving & curved
            state = choose_rows(moving, stepped, state)
            moving = moving & (state.square > goal)
            if not shapes_are_fixed() and not bool(moving.any()):
                break
        return LinearSolution(state.x, state.square <= goal, steps)

    def __repr__(self) -> str:
        return f"ConjugateGradients({self.max_steps}, {self.tolerance}, ridge={self.ridge})"


def _step(product: LinearMap, state: _State) -> tuple[_State, Tensor]:
    """The next state, and whether the matrix is positive along its direction."""
    x, residual, direction, square, largest = state
    image = product(direction)
    along = (direction * image).sum(-1)
    curvature = along / direction.square().sum(-1)
    largest = torch.maximum(largest, curvature)
    curved = (curvature > 0) & (curvature > ROUNDINGS * torch.finfo(x.dtype).eps * largest)
    rate = (square / along).unsqueeze(-1)
    residual = residual - rate * image
    next_square = residual.square().sum(-1)
    next_direction = residual + (next_square / square).unsqueeze(-1) * direction
    return _State(x + rate * direction, residual, next_direction, next_square, largest), curved
