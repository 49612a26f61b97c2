"""The base class of solvers, one step of an inner optimiser for every row at once, and what several
of them share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from equipool.objective import Objective

ULPS = 32  # of an energy, a sum over the set: what its last digits may be off by


class SolverState(Protocol):
    """What a solver carries from step to step: a named tuple.

    It must have the fields (or properties) `y`, `point` and `gradient`. Its other fields are up to
    the solver. A tensor with dimensions has a row per set; the loop selects and replaces its rows.
    A tensor without dimensions, a number or None is shared by all sets. A field may be a tuple of
    such fields.
    """

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
    """A minimiser of an objective, row by row: the step of a row must not depend on other rows.

    A subclass must provide `init` and `step`. It may override `at_rest` to keep what the search has
    learned about the rows. Learned scalars are read in `init`, once per search, and kept in the
    state.

    Example:
        >>> from typing import NamedTuple
        >>> class State(NamedTuple):
        ...     y: torch.Tensor
        ...     gradient: torch.Tensor
        ...     @property
        ...     def point(self):
        ...         return self.y
        >>> class SignDescent(equipool.solvers.Solver):
        ...     def init(self, y, num_steps, objective):
        ...         return State(y, torch.zeros_like(y))
        ...     def step(self, objective, state):
        ...         g = objective.gradient(state.y)
        ...         return State(state.y - 0.1 * g.sign(), g)
        >>> layer = equipool.EquilibriumAggregation(3, 8, solver=SignDescent())
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([1, 8])
    """

    capturable = True
    """Whether the steps can be recorded as a CUDA graph."""

    in_one_step = False
    """Whether one step ends the search."""

    num_steps = 10
    """How many steps a layer allows by default."""

    @abstractmethod
    def init(self, y: Tensor, num_steps: int, objective: Objective) -> State:
        """The state before the first of at most `num_steps` steps."""

    def at_rest(self, state: State, y: Tensor, num_steps: int, objective: Objective) -> State:
        """The state before further steps from `y`, where a search has ended in `state`: without
        momentum, but with what the search has learned about the rows, such as step sizes."""
        return self.init(y, num_steps, objective)

    @abstractmethod
    def step(self, objective: Objective, state: State) -> State:
        """The state after one more step."""


def slack(energy: Tensor) -> Tensor:
    """How much an energy may rise through rounding alone."""
    return ULPS * torch.finfo(energy.dtype).eps * energy.abs()
