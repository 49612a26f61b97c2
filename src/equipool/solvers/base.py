"""What a solver is: one step of an inner optimiser, for every row at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from torch import Tensor, nn

from equipool.objective import Objective


class SolverState(Protocol):
    """What a solver carries from step to step: a named tuple, as `equipool.rows` reads it."""

    @property
    def y(self) -> Tensor:
        """`[num_rows, K]` the best output so far."""

    @property
    def point(self) -> Tensor:
        """`[num_rows, K]` where the next step takes the gradient."""

    @property
    def gradient(self) -> Tensor:
        """`[num_rows, K]` the gradient of the last step, taken where that step took it."""

    def _replace(self, *, y: Tensor) -> SolverState:
        """The state with another y."""


State = TypeVar("State", bound=SolverState)


class Solver(nn.Module, Generic[State]):
    """A minimiser of an objective, row by row: no row's step may depend on another row.

    Learned scalars are read in `init`, once a solve, and are kept in the state.
    """

    recordable = True
    """Whether the steps can be recorded as a CUDA graph."""

    @abstractmethod
    def init(self, y: Tensor, num_steps: int, objective: Objective) -> State:
        """The state before the first of at most `num_steps` steps."""

    def at_rest(self, state: State, y: Tensor, num_steps: int, objective: Objective) -> State:
        """The state before further steps from `y`, where a search has ended in `state`: without its
        momentum, with what it found out about the rows."""
        return self.init(y, num_steps, objective)

    @abstractmethod
    def step(self, objective: Objective, state: State) -> State:
        """The state one step further."""
