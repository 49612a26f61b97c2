"""Gradient descent with momentum, as in the paper."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.ops.derivatives import scaled
from equipool.ops.momentum import momentum_step
from equipool.scalars import FractionScalar, LearnedScalar, PositiveScalar
from equipool.solvers.base import Solver, State, check_restraint, restrained


class MomentumState(NamedTuple):
    """What is carried from step to step."""

    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    velocity: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    learning_rate: Tensor
    momentum: Tensor


class LearnedMomentum(Solver[State]):
    """A solver whose step size and momentum are learned."""

    def __init__(self, learning_rate: float, momentum: float, learnable: bool) -> None:
        super().__init__()
        self.raw_learning_rate: LearnedScalar = PositiveScalar(
            "learning_rate", learning_rate, learnable
        )
        self.raw_momentum = FractionScalar("momentum", momentum, learnable)

    @property
    def learning_rate(self) -> Tensor:
        return self.raw_learning_rate()

    @property
    def momentum(self) -> Tensor:
        return self.raw_momentum()

    def reset_parameters(self) -> None:
        self.raw_learning_rate.reset_parameters()
        self.raw_momentum.reset_parameters()


class Momentum(LearnedMomentum[MomentumState]):
    """What gradient descent with momentum has in common, wherever its gradient is taken."""

    def __init__(
        self,
        learning_rate: float = 0.125,
        momentum: float = 0.9,
        gtol: float = 0.0,
        clip_value: float | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__(learning_rate, momentum, learnable)
        check_restraint(gtol, clip_value)
        self.gtol = gtol
        self.clip_value = clip_value

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> MomentumState:
        zero = torch.zeros_like(y)
        return MomentumState(y, y, zero, zero, self.learning_rate, self.momentum)

    @abstractmethod
    def next_point(self, y: Tensor, ahead: Tensor) -> Tensor:
        """Which of y and the look-ahead takes the gradient of the next step."""

    def step(self, objective: Objective, state: MomentumState) -> MomentumState:
        g = objective.gradient(state.point)
        y, velocity, ahead, rate, momentum, _ = momentum_step(
            state.y, state.velocity, g, state.learning_rate, state.momentum
        )
        if self.gtol > 0 or self.clip_value is not None:
            y = restrained(state.y, velocity, g, self.gtol, self.clip_value)
            ahead = y + scaled(momentum, velocity)
        return MomentumState(y, self.next_point(y, ahead), velocity, g, rate, momentum)

    def extra_repr(self) -> str:
        return f"gtol={self.gtol}, clip_value={self.clip_value}"


class Nesterov(Momentum):
    r"""Gradient descent with Nesterov's momentum, as in the paper's listing:

    $$v \leftarrow \mu v - \alpha \nabla E(y + \mu v), \qquad y \leftarrow y + v.$$

    Args:
        learning_rate: step size $\alpha$; the value given is the value in effect.
        momentum: $\mu$, at least 0 and less than 1; a momentum of 0 stays 0.
        gtol: a set whose largest gradient component falls below keeps its y, while its momentum
            goes on, so that it may move again.
        clip_value: after each step every component of y is brought back into
            `[-clip_value, clip_value]`.
        learnable: whether step size and momentum are learned.

    Example:
        >>> Nesterov(learning_rate=0.1).learning_rate
        tensor(0.1000, grad_fn=<MulBackward0>)
    """

    def next_point(self, y: Tensor, ahead: Tensor) -> Tensor:
        return ahead


class HeavyBall(Momentum):
    r"""Gradient descent with Polyak's momentum, whose gradient is taken at y itself:

    $$v \leftarrow \mu v - \alpha \nabla E(y), \qquad y \leftarrow y + v.$$

    PyTorch Geometric's layer steps like this. The arguments are those of `Nesterov`.
    """

    def next_point(self, y: Tensor, ahead: Tensor) -> Tensor:
        return y
