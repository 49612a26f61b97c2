"""Momentum that is held back, so that learned dynamics cannot run away."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.ops.momentum import History, Limits, momentum_step
from equipool.solvers.momentum import LearnedMomentum


class RestrainedState(NamedTuple):
    """What is carried from step to step."""

    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    velocity: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    learning_rate: Tensor
    momentum: Tensor
    last_point: Tensor  # [num_rows, K] where the gradient was taken
    curvature: Tensor  # [num_rows, 1] the largest met on the way


class RestrainedNesterov(LearnedMomentum[RestrainedState]):
    r"""Nesterov's momentum, held back set by set:

    $$v \leftarrow \mathrm{cut}_s(\mu v - \alpha\, c\, \mathrm{cut}_r(\nabla E(y + \mu v))),
      \qquad y \leftarrow y + v,$$

    where $\mathrm{cut}_r(a) = a / \max(1, \lVert a \rVert / r)$ and $c = \min(1, 1 / (\alpha L))$.
    $L$ is the largest curvature that the set has met, $\lVert g_k - g_{k-1} \rVert /
    \lVert p_k - p_{k-1} \rVert$ between the points $p$ where the gradients $g$ were taken. It costs
    no evaluation.

    The paper's recipe takes its first step from a point where an untrained potential may be steep,
    and its loss is large until that step is tamed. `momentum=0.5, max_step=0.5,
    curvature_safe=True` trains the median task to a tenth of the error of plain `Nesterov`
    (measured in `docs/stability.md`).

    Args:
        learning_rate: step size $\alpha$; the value given is the value in effect.
        momentum: $\mu$, at least 0 and less than 1.
        max_step: $s$, the longest step; None for any length.
        max_gradient: $r$, the longest gradient that is followed; None for any length.
        curvature_safe: whether steps are shortened by $c$. $L$ is held constant in the derivative,
            so that the gradient of `Unrolled` is not the exact one of a set where $c < 1$.
        learnable: whether step size and momentum are learned.

    Example:
        >>> solver = RestrainedNesterov(momentum=0.5, max_step=0.5, curvature_safe=True)
        >>> layer = equipool.EquilibriumAggregation(3, 8, solver=solver, num_steps=1)
        >>> bool((layer(100 * torch.randn(5, 3)).norm() <= 0.5001))
        True
    """

    def __init__(
        self,
        learning_rate: float = 0.125,
        momentum: float = 0.9,
        max_step: float | None = None,
        max_gradient: float | None = None,
        curvature_safe: bool = False,
        learnable: bool = True,
    ) -> None:
        super().__init__(learning_rate, momentum, learnable)
        for name, bound in (("max_step", max_step), ("max_gradient", max_gradient)):
            if bound is not None and not bound > 0:
                raise ValueError(f"{name} is {bound}, expected more than 0, or None")
        self.max_step = max_step
        self.max_gradient = max_gradient
        self.curvature_safe = curvature_safe

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> RestrainedState:
        zero = torch.zeros_like(y)
        return RestrainedState(
            y, y, zero, zero, self.learning_rate, self.momentum, y, y.new_zeros(y.shape[0], 1)
        )

    def at_rest(
        self, state: RestrainedState, y: Tensor, num_steps: int, objective: Objective
    ) -> RestrainedState:
        return self.init(y, num_steps, objective)._replace(curvature=state.curvature)

    def step(self, objective: Objective, state: RestrainedState) -> RestrainedState:
        g = objective.gradient(state.point)
        history = History(state.point, state.last_point, state.gradient, state.curvature)
        y, velocity, ahead, rate, momentum, curvature = momentum_step(
            state.y, state.velocity, g, state.learning_rate, state.momentum,
            Limits(self.max_step, self.max_gradient), history if self.curvature_safe else None,
        )  # fmt: skip
        if curvature is None:
            curvature = state.curvature
        return RestrainedState(y, ahead, velocity, g, rate, momentum, state.point, curvature)

    def extra_repr(self) -> str:
        return (
            f"max_step={self.max_step}, max_gradient={self.max_gradient}, "
            f"curvature_safe={self.curvature_safe}"
        )
