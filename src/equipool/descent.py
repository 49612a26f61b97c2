"""The loop of the search."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.ops.derivatives import squared_norms
from equipool.ops.execution import shapes_are_fixed
from equipool.rows import choose_rows, put_rows, take_rows, with_shared, with_unchanged
from equipool.solvers.base import Solver, SolverState
from equipool.steps import Budget

# Stopped sets are dropped from the batch once at most this fraction of it still moves.
COMPACT_BELOW = 0.75


class Descent(NamedTuple):
    """The result of a search."""

    y: Tensor  # [num_rows, K] where it ended
    squared_gradient: Tensor  # [num_rows] squared norm of the gradient, averaged over the steps
    steps: Tensor  # [num_rows] number of steps taken
    trajectory: tuple[Tensor, ...] = ()  # y before the first and after each step, if kept
    fallback: Tensor | None = None  # [num_rows] rows whose gradient is not the requested one


class Progress(NamedTuple):
    """The state of a search between two steps. What is the same for all rows is not stored per row:
    most searches have no tolerance, and small batches are bound by the number of kernels launched.
    """

    state: SolverState
    total: Tensor | None = None  # [num_rows] squared norms of the gradient, summed over the steps
    taken: Tensor | int = 0  # [num_rows] steps taken by each row, or one number for all
    unstopped: Tensor | None = None  # [num_rows] as `moving`, if rows can stop
    path: tuple[Tensor, ...] = ()  # y before the first and after each step, if kept

    @property
    def squared_gradient(self) -> Tensor:
        """`[num_rows]` squared norm of the gradient, summed over the steps."""
        return self.state.y.new_zeros(self.state.y.shape[0]) if self.total is None else self.total

    @property
    def steps(self) -> Tensor:
        """`[num_rows]` number of steps taken."""
        if isinstance(self.taken, Tensor):
            return self.taken
        return torch.full(self.state.y.shape[:1], self.taken, device=self.state.y.device)

    @property
    def moving(self) -> Tensor:
        """`[num_rows]` whether the row has not reached the tolerance."""
        if self.unstopped is not None:
            return self.unstopped
        return torch.ones(self.state.y.shape[0], dtype=torch.bool, device=self.state.y.device)

    def finish(self) -> Descent:
        """The result if the search ends here."""
        mean, taken = self.squared_gradient, self.taken
        if self.total is not None:
            mean = mean / (taken.clamp(min=1) if isinstance(taken, Tensor) else max(taken, 1))
        return Descent(self.state.y, mean, self.steps, self.path)


class Search(NamedTuple):
    """A search for the minimum of an objective. A `Differentiation` runs it.

    `search.begin()` is the state before the first step, `search.run(progress, ...)` takes steps and
    `progress.finish()` is the result. `search.solve()` does all three.
    """

    solver: Solver[Any]
    objective: Objective
    start: Tensor  # [num_rows, K]
    budget: Budget
    keep_squared_gradient: bool = True
    keep_trajectory: bool = False

    def solve(self) -> Descent:
        """Search from the start to the end of the budget."""
        return self.run(self.begin(), self.budget.num_steps, self.budget.stop_at).finish()

    def begin(self) -> Progress:
        """The state before the first step."""
        state = self.solver.init(self.start, self.budget.num_steps, self.objective)
        progress = Progress(state, path=(self.start,) if self.keep_trajectory else ())
        if self.budget.stop_at is None:
            return progress
        return progress._replace(unstopped=progress.moving)

    def begin_counting(self) -> Progress:
        """The state before the first step of a search with a tolerance, in the form that it has
        after a step."""
        progress = self.begin()
        total = progress.squared_gradient if self.keep_squared_gradient else None
        return progress._replace(total=total, taken=progress.steps)

    def run(self, progress: Progress, num_steps: int, stop_at: float | None = None) -> Progress:
        """Take steps. This is the only loop.

        Given `stop_at`, a row whose gradient is within it stops where that gradient was taken.
        Without gradients, stopped rows are dropped from the batch, so that they cost no more;
        otherwise, and in a program of fixed shapes, they are masked. Without `stop_at`, every row
        takes every step.
        """
        fixed = shapes_are_fixed()
        for step in range(num_steps):
            before = progress
            progress = self._step(before)
            if stop_at is None:
                continue
            residual = torch.linalg.vector_norm(progress.state.gradient.detach(), torch.inf, dim=-1)
            progress = _count(before, progress, residual, stop_at)
            # This waits for the device once per step; the answer saves the selection of rows.
            moving = 0 if fixed else int(progress.moving.sum())
            if moving < progress.moving.shape[0]:
                progress = _stop_rows(before, progress, residual <= stop_at)
            if fixed:
                continue
            if moving == 0:
                break
            compacted = self._run_moving_rows(progress, moving, num_steps - step - 1, stop_at)
            if compacted is not None:
                return compacted
        if stop_at is None:
            progress = progress._replace(taken=progress.taken + num_steps)
        return progress

    def resume_with_gradients(self, progress: Progress) -> Progress:
        """Progress made without gradients, with the solver's learned scalars read again, so that
        gradients pass from here on. For a row that has not left the start, such as an empty set,
        they pass to the start as well."""
        fresh = self.solver.init(self.start, self.budget.num_steps, self.objective)
        state = with_shared(progress.state, fresh)
        # A solver may step from y, or from a point of its own.
        unmoved = (state.y == self.start).all(-1)
        return progress._replace(state=with_unchanged(state, fresh, unmoved))

    def restart_at_rest(self, progress: Progress, num_steps: int) -> Progress:
        """Progress with a new solver state where the search ended, before `num_steps` further
        steps. Momentum left over from the search would carry the sets away from the minimum."""
        unmoved = (progress.state.y == self.start).all(-1, keepdim=True)
        end = torch.where(unmoved, self.start, progress.state.y)
        state = self.solver.at_rest(progress.state, end, num_steps, self.objective)
        return progress._replace(state=state)

    def _step(self, progress: Progress) -> Progress:
        state = self.solver.step(self.objective, progress.state)
        total = progress.total
        if self.keep_squared_gradient:
            square = squared_norms(state.gradient)
            total = square if total is None else total + square
        path = (*progress.path, state.y) if self.keep_trajectory else ()
        return progress._replace(state=state, total=total, path=path)

    def _run_moving_rows(
        self, progress: Progress, moving: int, num_steps: int, stop_at: float
    ) -> Progress | None:
        """Run the rest of the search for the moving rows alone, if there are few enough, nothing
        else needs the stopped ones and the objective can be restricted."""
        few = moving <= COMPACT_BELOW * progress.moving.shape[0]
        if not few or torch.is_grad_enabled() or self.keep_trajectory:
            return None
        (rows,) = progress.moving.nonzero(as_tuple=True)
        objective = self.objective.restrict(rows)
        if objective is None:
            return None
        restricted = self._replace(objective=objective)
        return put_rows(
            progress, rows, restricted.run(take_rows(progress, rows), num_steps, stop_at)
        )


def _count(before: Progress, after: Progress, residual: Tensor, stop_at: float) -> Progress:
    """Count the step for the rows that took it. They keep moving unless the gradient that the step
    followed is within the tolerance, or not finite."""
    moving = before.moving & (residual > stop_at) & (residual < torch.inf)
    return after._replace(unstopped=moving, taken=before.taken + before.moving)


def _stop_rows(before: Progress, after: Progress, reached: Tensor) -> Progress:
    """Keep stopped rows where they are, and stop those whose gradient is within the tolerance at
    the point where it was taken. A row that is not finite stops as it is."""
    here, point = before.state, before.state.point
    if point is not here.y:
        here = here._replace(y=choose_rows(before.moving & reached, point, here.y))
    state = choose_rows(before.moving & ~reached, after.state, here)
    total = after.total
    if total is not None:
        total = choose_rows(before.moving, total, before.squared_gradient)
    path = (*before.path, state.y) if after.path else ()
    return after._replace(state=state, total=total, path=path)
