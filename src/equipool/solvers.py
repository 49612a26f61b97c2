"""One step of an inner optimiser. A solver sees nothing of the energy but its gradient."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipool.ops.momentum import momentum_step
from equipool.scalars import FractionScalar, PositiveScalar

GradientFunction = Callable[[Tensor], Tensor]


class SolverState(NamedTuple):
    """What a solver carries from step to step, with its learned scalars read once per solve."""

    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K] where the next step takes the gradient
    velocity: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K] the gradient of the last step, taken where the step took it
    learning_rate: Tensor
    momentum: Tensor


class Solver(nn.Module):
    """A minimiser of a function of each row of y, given its gradient."""

    gtol: float

    @abstractmethod
    def init(self, y: Tensor) -> SolverState:
        """The state before the first step."""

    @abstractmethod
    def step(self, gradient: GradientFunction, state: SolverState) -> SolverState:
        """The state one step further."""


class Momentum(Solver):
    """What gradient descent with momentum has in common, wherever its gradient is taken."""

    def __init__(
        self,
        learning_rate: float = 0.125,
        momentum: float = 0.9,
        gtol: float = 0.0,
        clip_value: float | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        if not (math.isfinite(gtol) and gtol >= 0):
            raise ValueError(f"gtol is {gtol}, expected 0 or more")
        if clip_value is not None and not clip_value > 0:
            raise ValueError(f"clip_value is {clip_value}, expected more than 0, or None")
        self.raw_learning_rate = PositiveScalar("learning_rate", learning_rate, learnable)
        self.raw_momentum = FractionScalar("momentum", momentum, learnable)
        self.gtol = gtol
        self.clip_value = clip_value

    @property
    def learning_rate(self) -> Tensor:
        return self.raw_learning_rate()

    @property
    def momentum(self) -> Tensor:
        return self.raw_momentum()

    def reset_parameters(self) -> None:
        self.raw_learning_rate.reset_parameters()
        self.raw_momentum.reset_parameters()

    def init(self, y: Tensor) -> SolverState:
        zero = torch.zeros_like(y)
        return SolverState(y, y, zero, zero, self.learning_rate, self.momentum)

    @abstractmethod
    def next_point(self, y: Tensor, ahead: Tensor) -> Tensor:
        """Which of y and the look-ahead takes the gradient of the next step."""

    def step(self, gradient: GradientFunction, state: SolverState) -> SolverState:
        g = gradient(state.point)
        y, velocity, ahead = momentum_step(
            state.y, state.velocity, g, state.learning_rate, state.momentum
        )
        if self.gtol > 0 or self.clip_value is not None:
            y = self._restrain(state.y, velocity, g)
            ahead = y + state.momentum * velocity
        return state._replace(y=y, point=self.next_point(y, ahead), velocity=velocity, gradient=g)

    def _restrain(self, y: Tensor, velocity: Tensor, g: Tensor) -> Tensor:
        moving = g.abs().amax(-1, keepdim=True) >= self.gtol
        y = y + moving * velocity
        return y if self.clip_value is None else y.clamp(-self.clip_value, self.clip_value)

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
