"""Conjugate gradients, for every row at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.linear_solvers.base import (
    LinearSolution,
    LinearSolver,
    check_iteration,
    exceeds_rounding,
)
from equipool.objective import LinearMap
from equipool.ops.availability import shapes_are_fixed


class _State(NamedTuple):
    x: Tensor  # [num_rows, K]
    residual: Tensor  # [num_rows, K]
    direction: Tensor  # [num_rows, K]
    square: Tensor  # [num_rows] squared norm of the residual
    largest: Tensor  # [num_rows] largest curvature met
    moving: Tensor  # [num_rows] whether the row is neither done nor given up


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
        fixed = shapes_are_fixed()
        square = torch.linalg.vecdot(b, b)
        goal = self.tolerance**2 * square
        moving, steps = square > 0, torch.zeros_like(square, dtype=torch.long)
        state = _State(torch.zeros_like(b), b, b, square, torch.zeros_like(square), moving)
        for _ in range(self.max_steps):
            steps = steps + state.moving
            state = _step(product, state)
            state = state._replace(moving=state.moving & (state.square > goal))
            if not fixed and not bool(state.moving.any()):
                break
        done = (state.square <= goal) & exceeds_rounding(state.x, b, state.largest)
        return LinearSolution(state.x, done, steps)

    def __repr__(self) -> str:
        return f"ConjugateGradients({self.max_steps}, {self.tolerance}, ridge={self.ridge})"


def _step(product: LinearMap, state: _State) -> _State:
    """The next state. Rows that do not move, or along whose direction the matrix is not positive,
    take a step of length zero: few operations, as on a GPU their number is what this costs.

    With `p = r + beta q`, q being the last direction and conjugate to p, `p.Hp <= r.Hr`. So the
    curvature that a step finds, `p.Hp / r.r`, is not above the largest of the matrix."""
    x, residual, direction, square, largest, moving = state
    image = product(direction)
    along = torch.linalg.vecdot(direction, image)
    moving = moving & (along > 0)
    rate = torch.where(moving, square / along, 0).unsqueeze(-1)
    residual = torch.addcmul(residual, rate, image, value=-1)
    next_square = torch.linalg.vecdot(residual, residual)
    share = torch.where(moving, next_square / square, 0).unsqueeze(-1)
    return _State(
        torch.addcmul(x, rate, direction),
        residual,
        torch.addcmul(residual, share, direction),
        next_square,
        torch.fmax(largest, along / square),  # 0 / 0 where the residual is zero: no number
        moving,
    )
