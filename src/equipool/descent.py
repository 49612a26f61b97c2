"""The loop of the solve."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.ops.availability import shapes_are_fixed
from equipool.ops.derivatives import squared_norms
from equipool.rows import choose_rows, put_rows, take_rows, with_shared, with_unchanged
from equipool.solvers.base import Solver, SolverState

# Sets that have stopped are dropped from the batch when no more than this part of it still moves.
COMPACT_BELOW = 0.75


class Budget(NamedTuple):
    """How long a solve goes on."""

    num_steps: int
    tolerance: float | None = None  # a set stops when no component of its gradient exceeds this
    converged_at: float = 1e-3  # a set that has stopped or not has converged when none exceeds this


class Wanted(NamedTuple):
    """What of a descent is kept beside its end."""

    squared_gradient: bool = True
    trajectory: bool = False


class Walk(NamedTuple):
    """How far a solve has come. What is the same for all rows is not held row by row, as most
    solves have no tolerance and small batches are bound by the number of kernels launched."""

    state: SolverState
    total: Tensor | None  # [num_rows] squared norms of the gradient, added up where that is wanted
    taken: Tensor | int  # [num_rows] steps taken by each row, or by every row
    unstopped: Tensor | None  # [num_rows] as `moving`, where rows may stop
    path: tuple[Tensor, ...]  # y before the first and after each step, where it is wanted

    @property
    def squared_gradient(self) -> Tensor:
        """`[num_rows]` squared norm of the gradient, summed over the steps."""
        return self.state.y.new_zeros(self.state.y.shape[0]) if self.total is None else self.total

    @property
    def steps(self) -> Tensor:
        """`[num_rows]` steps taken."""
        if isinstance(self.taken, Tensor):
            return self.taken
        return torch.full(self.state.y.shape[:1], self.taken, device=self.state.y.device)

    @property
    def moving(self) -> Tensor:
        """`[num_rows]` whether the row has not reached the tolerance."""
        if self.unstopped is not None:
            return self.unstopped
        return torch.ones(self.state.y.shape[0], dtype=torch.bool, device=self.state.y.device)


class Descent(NamedTuple):
    """The way from the start to the output."""

    y: Tensor  # [num_rows, K] where it ended
    squared_gradient: Tensor  # [num_rows] squared norm of the gradient, averaged over the steps
    steps: Tensor  # [num_rows] steps taken
    trajectory: tuple[Tensor, ...]  # y before the first and after each step
    fallback: Tensor | None = None  # [num_rows] whether the row's gradient is not the one asked for


def set_out(
    solver: Solver[Any], objective: Objective, y: Tensor, budget: Budget, wanted: Wanted
) -> Walk:
    """A walk before its first step."""
    state = solver.init(y, budget.num_steps, objective)
    walk = Walk(state, None, 0, None, (y,) if wanted.trajectory else ())
    return walk if budget.tolerance is None else walk._replace(unstopped=walk.moving)


def iterate(
    solver: Solver[Any], objective: Objective, walk: Walk, budget: Budget, wanted: Wanted
) -> Walk:
    """Take the steps. This is the only loop.

    With a tolerance, a row whose gradient is within it stops where that gradient was taken. Without
    a graph to be kept, rows that have stopped are dropped from the batch, so that they cost no
    more; otherwise, and in a program of fixed shapes, they are masked. Without a tolerance, every
    row takes every step.
    """
    fixed = shapes_are_fixed()
    for step in range(budget.num_steps):
        before = walk
        walk = _advance(solver, objective, before, wanted)
        if budget.tolerance is None:
            continue
        residual = torch.linalg.vector_norm(walk.state.gradient.detach(), torch.inf, dim=-1)
        walk = _count(before, walk, residual, budget.tolerance)
        # This waits for the device, once a step; what it answers saves the choice of rows.
        moving = 0 if fixed else int(walk.moving.sum())
        if moving < walk.moving.shape[0]:
            walk = _hold(before, walk, residual <= budget.tolerance)
        if fixed:
            continue
        if moving == 0:
            break
        if _may_compact(walk, moving, wanted):
            left = budget._replace(num_steps=budget.num_steps - step - 1)
            return _go_on_with_the_moving(solver, objective, walk, left, wanted)
    if budget.tolerance is None:
        walk = walk._replace(taken=walk.taken + budget.num_steps)
    return walk


def arrive(walk: Walk) -> Descent:
    """The end of a walk."""
    mean, taken = walk.squared_gradient, walk.taken
    if walk.total is not None:
        mean = mean / (taken.clamp(min=1) if isinstance(taken, Tensor) else max(taken, 1))
    return Descent(walk.state.y, mean, walk.steps, walk.path)


def pick_up(
    walk: Walk, solver: Solver[Any], objective: Objective, y: Tensor, budget: Budget
) -> Walk:
    """A walk that gradients have not passed through, to be continued with the solver's learned
    scalars read anew, so that they pass from here on. Where a row has not left the start `y`, as an
    empty set never does, they pass to the start as well."""
    fresh = solver.init(y, budget.num_steps, objective)
    state = with_shared(walk.state, fresh)
    # A solver may step from y, or from a point of its own.
    unmoved = (state.y == y).all(-1)
    return walk._replace(state=with_unchanged(state, fresh, unmoved))


def _advance(solver: Solver[Any], objective: Objective, walk: Walk, wanted: Wanted) -> Walk:
    state = solver.step(objective, walk.state)
    total = walk.total
    if wanted.squared_gradient:
        square = squared_norms(state.gradient)
        total = square if total is None else total + square
    path = (*walk.path, state.y) if wanted.trajectory else ()
    return walk._replace(state=state, total=total, path=path)


def _count(before: Walk, after: Walk, residual: Tensor, tolerance: float) -> Walk:
    """The step counts for the rows that took it. They move on unless the gradient that it followed
    is within the tolerance, or not finite."""
    moving = before.moving & (residual > tolerance) & (residual < torch.inf)
    return after._replace(unstopped=moving, taken=before.taken + before.moving)


def _hold(before: Walk, after: Walk, reached: Tensor) -> Walk:
    """Rows that had stopped stay; those whose gradient is within the tolerance stop where it was
    taken. A row that is not finite stays so, and stops as it is."""
    here, point = before.state, before.state.point
    if point is not here.y:
        here = here._replace(y=choose_rows(before.moving & reached, point, here.y))
    state = choose_rows(before.moving & ~reached, after.state, here)
    total = after.total
    if total is not None:
        total = choose_rows(before.moving, total, before.squared_gradient)
    path = (*before.path, state.y) if after.path else ()
    return after._replace(state=state, total=total, path=path)


def _go_on_with_the_moving(
    solver: Solver[Any], objective: Objective, walk: Walk, budget: Budget, wanted: Wanted
) -> Walk:
    (rows,) = walk.moving.nonzero(as_tuple=True)
    moving = iterate(solver, objective.restrict(rows), take_rows(walk, rows), budget, wanted)
    return put_rows(walk, rows, moving)


def _may_compact(walk: Walk, moving: int, wanted: Wanted) -> bool:
    few = moving <= COMPACT_BELOW * walk.moving.shape[0]
    return few and not torch.is_grad_enabled() and not wanted.trajectory
