"""Gradient descent without momentum."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.ops.derivatives import scaled
from equipool.scalars import PositiveScalar
from equipool.solvers.base import Solver, check_restraint, restrained


class GradientDescentState(NamedTuple):
    """What is carried from step to step."""

    y: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    learning_rate: Tensor

    @property
    def point(self) -> Tensor:
        return self.y


class GradientDescent(Solver[GradientDescentState]):
    r"""Gradient descent with a learned step size:

    $$y \leftarrow y - \alpha \nabla E(y).$$

    Args:
        learning_rate: step size $\alpha$; the value given is the value in effect.
        gtol: a set whose largest gradient component falls below keeps its y.
        clip_value: after each step every component of y is brought back into
            `[-clip_value, clip_value]`.
        learnable: whether the step size is learned.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, solver=GradientDescent(0.1))
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([1, 8])
    """

    def __init__(
        self,
        learning_rate: float = 0.125,
        gtol: float = 0.0,
        clip_value: float | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        check_restraint(gtol, clip_value)
        self.raw_learning_rate = PositiveScalar("learning_rate", learning_rate, learnable)
        self.gtol = gtol
        self.clip_value = clip_value

    @property
    def learning_rate(self) -> Tensor:
        return self.raw_learning_rate()

    def reset_parameters(self) -> None:
        self.raw_learning_rate.reset_parameters()

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> GradientDescentState:
        return GradientDescentState(y, torch.zeros_like(y), self.learning_rate)

    def step(self, objective: Objective, state: GradientDescentState) -> GradientDescentState:
        g = objective.gradient(state.y)
        move = -scaled(state.learning_rate, g)
        y = restrained(state.y, move, g, self.gtol, self.clip_value)
        return state._replace(y=y, gradient=g)

    def extra_repr(self) -> str:
        return f"gtol={self.gtol}, clip_value={self.clip_value}"
