"""Ways to hold a learned descent back, each with a price to be measured."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.ops.momentum import momentum_step
from equipool.scalars import FractionScalar, LearnedScalar, PositiveScalar
from equipool.solvers import Solver


class BoundedScalar(LearnedScalar):
    r"""A number between 0 and a bound $b$, $v = v_0 / (q + (1 - q) e^{-r})$ with $q = v_0 / b$."""

    def __init__(self, name: str, origin: float, bound: float, learnable: bool = True) -> None:
        if not 0 < origin < bound < math.inf:
            raise ValueError(f"{name} is {origin}, expected more than 0 and less than {bound}")
        super().__init__(origin, learnable)
        self.bound = bound

    def constrain(self, origin: Tensor, raw: Tensor) -> Tensor:  # type: ignore[override]
        share = origin / self.bound
        return origin / (share + (1 - share) * torch.exp(-raw))


class RestrainedState(NamedTuple):
    """What is carried from step to step."""

    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    velocity: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    learning_rate: Tensor
    momentum: Tensor
    last_point: Tensor  # [num_rows, K] where the gradient was taken
    curvature: Tensor  # [num_rows, 1] the largest seen on the way


class RestrainedNesterov(Solver[RestrainedState]):
    r"""Nesterov's momentum, held back set by set:

    $$v \leftarrow \mathrm{cut}_s(\mu v - \alpha\, c\, \mathrm{cut}_r(\nabla E(y + \mu v))),
      \qquad y \leftarrow y + v,$$

    where $\mathrm{cut}_r(a) = a / \max(1, \lVert a \rVert / r)$ and $c = \min(1, 1 / (\alpha L))$.
    $L$ is the largest curvature that the set has met, $\lVert g_k - g_{k-1} \rVert /
    \lVert p_k - p_{k-1} \rVert$ between the points $p$ where the gradients $g$ were taken. It costs
    no evaluation, and is held constant in the derivative.

    Args:
        learning_rate: step size $\alpha$, where it starts.
        momentum: $\mu$, where it starts.
        max_learning_rate: the step size is learned below this bound.
        max_step: $s$, the longest step.
        max_gradient: $r$, the longest gradient.
        curvature_safe: whether to shorten steps by $c$; 1 otherwise.
    """

    def __init__(
        self,
        learning_rate: float = 0.125,
        momentum: float = 0.9,
        max_learning_rate: float | None = None,
        max_step: float | None = None,
        max_gradient: float | None = None,
        curvature_safe: bool = False,
    ) -> None:
        super().__init__()
        for name, bound in (("max_step", max_step), ("max_gradient", max_gradient)):
            if bound is not None and not bound > 0:
                raise ValueError(f"{name} is {bound}, expected more than 0, or None")
        self.raw_learning_rate: LearnedScalar = (
            PositiveScalar("learning_rate", learning_rate)
            if max_learning_rate is None
            else BoundedScalar("learning_rate", learning_rate, max_learning_rate)
        )
        self.raw_momentum = FractionScalar("momentum", momentum)
        self.max_step = max_step
        self.max_gradient = max_gradient
        self.curvature_safe = curvature_safe

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> RestrainedState:
        zero = torch.zeros_like(y)
        return RestrainedState(
            y, y, zero, zero, self.raw_learning_rate(), self.raw_momentum(), y, zero[:, :1]
        )

    def step(self, objective: Objective, state: RestrainedState) -> RestrainedState:
        g = objective.gradient(state.point)
        curvature = torch.maximum(state.curvature, _secant(state, g))
        y, velocity, ahead = momentum_step(
            state.y, state.velocity, self._held(g, curvature, state.learning_rate),
            state.learning_rate, state.momentum,
        )  # fmt: skip
        if self.max_step is not None:
            velocity = cut(velocity, self.max_step)
            y = state.y + velocity
            ahead = y + state.momentum * velocity
        return RestrainedState(
            y, ahead, velocity, g, state.learning_rate, state.momentum, state.point, curvature
        )

    def _held(self, g: Tensor, curvature: Tensor, learning_rate: Tensor) -> Tensor:
        if self.max_gradient is not None:
            g = cut(g, self.max_gradient)
        if self.curvature_safe:
            g = g / (learning_rate * curvature).clamp(min=1)
        return g


def cut(vectors: Tensor, longest: float) -> Tensor:
    """Rows that are longer are brought to this length, `[num_rows, K] -> [num_rows, K]`."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * (longest / norms.clamp(min=longest))


@torch.no_grad()
def _secant(state: RestrainedState, gradient: Tensor) -> Tensor:
    """The curvature between the last two points of each row, 0 where they are one: `[n, 1]`."""
    moved = torch.linalg.vector_norm(state.point - state.last_point, dim=-1, keepdim=True)
    bent = torch.linalg.vector_norm(gradient - state.gradient, dim=-1, keepdim=True)
    return torch.where(moved > 0, bent / moved, 0)
