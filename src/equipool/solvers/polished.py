"""A first-order search that ends with Newton steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from equipool.checks import as_count, check_part
from equipool.objective import Objective
from equipool.ops.derivatives import attach
from equipool.solvers.base import Solver, SolverState
from equipool.solvers.newton import Newton, NewtonState


class PolishedState(NamedTuple):
    """What is carried from step to step."""

    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    first: SolverState
    newton: NewtonState
    steps_left: int


class Polished(Solver[PolishedState]):
    """Another solver followed by Newton steps: the first steps approach a minimum cheaply, the last
    ones refine it. The output size must be small (see `Newton`).

    If a search reaches the tolerance before its budget is spent, it stops without Newton steps.

    Args:
        solver: takes the first steps.
        newton_steps: the number of Newton steps at the end.
        newton: takes the last steps. Default: `Newton()`.

    Example:
        >>> solver = Polished(equipool.Nesterov())
        >>> layer = equipool.EquilibriumAggregation(3, 2, solver=solver, num_steps=50)
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    recordable = False

    def __init__(
        self, solver: Solver[Any], newton_steps: int = 3, newton: Newton | None = None
    ) -> None:
        super().__init__()
        check_part("solver", solver, Solver, "Nesterov()")
        self.solver = solver
        self.newton_steps = as_count("newton_steps", newton_steps, least=1)
        self.newton = newton if newton is not None else Newton()

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> PolishedState:
        first = self.solver.init(y, self._first_steps(num_steps), objective)
        return self._begin(first, num_steps, objective)

    def at_rest(
        self, state: PolishedState, y: Tensor, num_steps: int, objective: Objective
    ) -> PolishedState:
        first = self.solver.at_rest(state.first, y, self._first_steps(num_steps), objective)
        return self._begin(first, num_steps, objective)

    def step(self, objective: Objective, state: PolishedState) -> PolishedState:
        if state.steps_left > self.newton_steps:
            return self._first_step(objective, state)
        newton = self.newton.step(objective, state.newton._replace(y=state.y))
        # The solver's scalars need a gradient, also where these are the only steps.
        y = attach(newton.y, *self.solver.parameters())
        left = state.steps_left - 1
        return state._replace(
            y=y, point=y, gradient=newton.gradient, newton=newton, steps_left=left
        )

    def _first_steps(self, num_steps: int) -> int:
        return max(num_steps - self.newton_steps, 0)

    def _begin(self, first: SolverState, num_steps: int, objective: Objective) -> PolishedState:
        newton = self.newton.init(first.y, min(num_steps, self.newton_steps), objective)
        point = first.point if num_steps > self.newton_steps else newton.point
        return PolishedState(first.y, point, first.gradient, first, newton, num_steps)

    def _first_step(self, objective: Objective, state: PolishedState) -> PolishedState:
        first = self.solver.step(objective, state.first._replace(y=state.y))
        left = state.steps_left - 1
        point = first.point if left > self.newton_steps else first.y
        return state._replace(
            y=first.y, point=point, gradient=first.gradient, first=first, steps_left=left
        )

    def extra_repr(self) -> str:
        return f"newton_steps={self.newton_steps}"
