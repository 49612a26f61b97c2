"""The loop of the search, and how gradients pass through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.ops.derivatives import squared_norms
from equipool.ops.execution import shapes_are_fixed
from equipool.solver_state import choose_rows, put_rows, take_rows
from equipool.solvers.base import Solver, SolverState
from equipool.steps import Budget

# Stopped sets are dropped from the batch once at most this fraction of it still moves.
COMPACT_BELOW = 0.75


class Keep(NamedTuple):
    """What a search keeps beside its result."""

    squared_gradient: bool = True  # for the auxiliary loss
    path: bool = False


class Descent(NamedTuple):
    """A search between two steps, or at its end. Values shared by all rows are stored once, because
    small batches are launch-bound."""

    state: SolverState
    squared_gradient: Tensor | None = None
    """`[num_rows]` squared norm of the gradient, summed over the steps, or averaged by `finish`."""
    num_steps: Tensor | int = 0  # [num_rows] taken by each row, or one number for all
    unstopped: Tensor | None = None  # [num_rows] as `moving`, if rows can stop
    path: tuple[Tensor, ...] = ()  # y before the first and after each step, if kept
    fallback: Tensor | None = None  # [num_rows] rows whose gradient is not the requested one

    @property
    def y(self) -> Tensor:
        """`[num_rows, K]`."""
        return self.state.y

    @property
    def moving(self) -> Tensor:
        """`[num_rows]` whether the row has not reached the tolerance."""
        if self.unstopped is not None:
            return self.unstopped
        return torch.ones(self.y.shape[0], dtype=torch.bool, device=self.y.device)

    def at(self, y: Tensor) -> Descent:
        """The same with another y, such as one with another gradient."""
        return self._replace(state=self.state._replace(y=y))

    def with_rows(self) -> Descent:
        """With a number for each row in place of one for all, and zero where nothing was kept."""
        num_steps, total = self.num_steps, self.squared_gradient
        if not isinstance(num_steps, Tensor):
            num_steps = torch.full(self.y.shape[:1], num_steps, device=self.y.device)
        total = self.y.new_zeros(self.y.shape[0]) if total is None else total
        return self._replace(squared_gradient=total, num_steps=num_steps)

    def finish(self) -> Descent:
        """The result if the search ends here."""
        mean, taken = self.squared_gradient, getattr(self.state, "passes", None)
        taken = self.num_steps if taken is None else taken
        if mean is not None:
            mean = mean / (taken.clamp(min=1) if isinstance(taken, Tensor) else max(taken, 1))
        return self._replace(squared_gradient=mean, num_steps=taken).with_rows()


class Search(NamedTuple):
    """A search for the minimum of an objective. A `Differentiation` runs it.

    `search.begin()` is the state before the first step, `search.run(descent, ...)` takes steps and
    `descent.finish()` is the result. `search.solve()` does all three.
    """

    solver: Solver[Any]
    objective: Objective
    start: Tensor  # [num_rows, K]
    budget: Budget
    keep: Keep = Keep()

    def solve(self) -> Descent:
        """Search from the start to the end of the budget."""
        if self.solver.in_one_step:
            return self.run(self.begin(), 1).finish()
        return self.run(self.begin(), self.budget.num_steps, self.budget.stop_at).finish()

    def begin(self) -> Descent:
        """The state before the first step."""
        state = self.solver.init(self.start, self.budget.num_steps, self.objective)
        descent = Descent(state, path=(self.start,) if self.keep.path else ())
        if self.budget.stop_at is None:
            return descent
        return descent._replace(unstopped=descent.moving)

    def run(self, descent: Descent, num_steps: int, stop_at: float | None = None) -> Descent:
        """Take steps. This is the only loop.

        Given `stop_at`, a row whose gradient is within it stops where that gradient was taken.
        Without gradients, stopped rows are dropped from the batch, so that they cost no more;
        otherwise, and in a program of fixed shapes, they are masked. Without `stop_at`, every row
        takes every step.
        """
        fixed = shapes_are_fixed()
        for step in range(num_steps):
            before = descent
            descent = self._step(before)
            if stop_at is None:
                continue
            residual = torch.linalg.vector_norm(descent.state.gradient.detach(), torch.inf, dim=-1)
            descent = _count(before, descent, residual, stop_at)
            # This waits for the device once per step; the answer saves the selection of rows.
            moving = 0 if fixed else int(descent.moving.sum())
            if moving < descent.moving.shape[0]:
                descent = _stop_rows(before, descent, residual <= stop_at)
            if fixed:
                continue
            if moving == 0:
                break
            compacted = self._run_moving_rows(descent, moving, num_steps - step - 1, stop_at)
            if compacted is not None:
                return compacted
        if stop_at is None:
            descent = descent._replace(num_steps=descent.num_steps + num_steps)
        return descent

    def _step(self, descent: Descent) -> Descent:
        state = self.solver.step(self.objective, descent.state)
        total = descent.squared_gradient
        if self.keep.squared_gradient:
            square = squared_norms(state.gradient)
            total = square if total is None else total + square
        path = (*descent.path, state.y) if self.keep.path else ()
        return descent._replace(state=state, squared_gradient=total, path=path)

    def _run_moving_rows(
        self, descent: Descent, moving: int, num_steps: int, stop_at: float
    ) -> Descent | None:
        """Run the rest of the search for the moving rows alone, if there are few enough, nothing
        else needs the stopped ones and the objective can be restricted."""
        few = moving <= COMPACT_BELOW * descent.moving.shape[0]
        if not few or torch.is_grad_enabled() or self.keep.path:
            return None
        (rows,) = descent.moving.nonzero(as_tuple=True)
        objective = self.objective.restrict(rows)
        if objective is None:
            return None
        restricted = self._replace(objective=objective)
        return put_rows(descent, rows, restricted.run(take_rows(descent, rows), num_steps, stop_at))


def _count(before: Descent, after: Descent, residual: Tensor, stop_at: float) -> Descent:
    """Count the step for the rows that took it. They keep moving unless the gradient that the step
    followed is within the tolerance, or non-finite."""
    moving = before.moving & (residual > stop_at) & (residual < torch.inf)
    return after._replace(unstopped=moving, num_steps=before.num_steps + before.moving)


def _stop_rows(before: Descent, after: Descent, reached: Tensor) -> Descent:
    """Keep stopped rows where they are, and stop those whose gradient is within the tolerance at
    the point where it was taken. A non-finite row stops as it is."""
    here, point = before.state, before.state.point
    if point is not here.y:
        here = here._replace(y=choose_rows(before.moving & reached, point, here.y))
    state = choose_rows(before.moving & ~reached, after.state, here)
    total = after.squared_gradient
    if total is not None:
        total = choose_rows(before.moving, total, before.with_rows().squared_gradient)
    path = (*before.path, state.y) if after.path else ()
    return after._replace(state=state, squared_gradient=total, path=path)


class Differentiation(ABC):
    """How gradients pass through the search.

    A subclass must provide `__call__`: it runs the search and returns a `Descent` whose `y` carries
    the gradient. `Unrolled` returns `search.solve()`, which autograd records step by step.

    Example:
        A gradient that ignores the search: `y` as a constant.

        >>> class NoGradient(equipool.differentiation.Differentiation):
        ...     def __call__(self, search):
        ...         with torch.no_grad():
        ...             return search.solve()
        >>> layer = equipool.EquilibriumAggregation(3, 8, differentiation=NoGradient())
        >>> layer(torch.randn(5, 3)).requires_grad
        False
    """

    capturable = True
    """Whether the backward pass can be recorded as a CUDA graph."""

    @abstractmethod
    def __call__(self, search: Search) -> Descent:
        """Run the search."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Unrolled(Differentiation):
    """Differentiate through every step, as the paper does: the exact gradient of the output,
    converged or not."""

    def __call__(self, search: Search) -> Descent:
        return search.solve()


class Ended(NamedTuple):
    """The state of a solver whose search has ended elsewhere: y alone."""

    y: Tensor  # [num_rows, K]

    @property
    def point(self) -> Tensor:
        return self.y

    @property
    def gradient(self) -> Tensor:
        raise NotImplementedError("the gradient of the last step was not kept")


def outputs_of(descent: Descent) -> tuple[Tensor, ...]:
    """y, squared gradient and number of steps of each row, as one batch of tensors."""
    rows = descent.with_rows()
    assert rows.squared_gradient is not None
    assert isinstance(rows.num_steps, Tensor)
    return rows.y, rows.squared_gradient, rows.num_steps
