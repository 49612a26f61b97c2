"""Gradient descent, with and without momentum."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.learned_scalars import FractionScalar, PositiveScalar
from equipool.objective import Objective
from equipool.ops.derivatives import History, momentum_step, scaled
from equipool.solvers.base import Solver


class MomentumState(NamedTuple):
    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    velocity: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    learning_rate: Tensor
    momentum: Tensor
    last_point: Tensor | None = None  # [num_rows, K] where the gradient was taken
    curvature: Tensor | None = None  # [num_rows, 1] the largest met on the way


class Momentum(Solver[MomentumState]):
    """A solver whose step size and momentum are learned; a subclass chooses where the gradient is
    taken."""

    looks_ahead: bool  # whether a step takes the gradient ahead, at y + mu v, or at y
    curvature_safe = False

    def __init__(
        self, learning_rate: float, momentum: float, gtol: float, clip_value: float | None,
        learnable: bool, max_step: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not (math.isfinite(gtol) and gtol >= 0):
            raise ValueError(f"gtol is {gtol}, expected 0 or more")
        for name, bound in (("clip_value", clip_value), ("max_step", max_step)):
            if bound is not None and not bound > 0:
                raise ValueError(f"{name} is {bound}, expected more than 0, or None")
        self.raw_learning_rate = PositiveScalar("learning_rate", learning_rate, learnable)
        self.raw_momentum = FractionScalar("momentum", momentum, learnable)
        self.gtol = gtol
        self.clip_value = clip_value
        self.max_step = max_step

    @property
    def learning_rate(self) -> Tensor:
        return self.raw_learning_rate()

    @property
    def momentum(self) -> Tensor:
        return self.raw_momentum()

    def reset_parameters(self) -> None:
        self.raw_learning_rate.reset_parameters()
        self.raw_momentum.reset_parameters()

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> MomentumState:
        zero = torch.zeros_like(y)
        state = MomentumState(y, y, zero, zero, self.learning_rate, self.momentum)
        if not self.curvature_safe:
            return state
        return state._replace(last_point=y, curvature=y.new_zeros(y.shape[0], 1))

    def at_rest(
        self, state: MomentumState, y: Tensor, num_steps: int, objective: Objective
    ) -> MomentumState:
        return self.init(y, num_steps, objective)._replace(curvature=state.curvature)

    def step(self, objective: Objective, state: MomentumState) -> MomentumState:
        g, history, last_point = objective.gradient(state.point), None, None
        if state.last_point is not None and state.curvature is not None:
            last_point = state.point
            history = History(last_point, state.last_point, state.gradient, state.curvature)
        rate, momentum = state.learning_rate, state.momentum
        y, velocity, ahead, curvature = momentum_step(
            state.y, state.velocity, g, rate, momentum, self.max_step, history
        )
        if self.gtol > 0 or self.clip_value is not None:
            y = self._restrain(state.y, velocity, g)
            ahead = y + scaled(momentum, velocity)
        point = ahead if self.looks_ahead else y
        return MomentumState(y, point, velocity, g, rate, momentum, last_point, curvature)

    def _restrain(self, y: Tensor, move: Tensor, gradient: Tensor) -> Tensor:
        """`y + move`, or y itself in rows whose largest gradient component is below gtol; then
        clamped to `[-clip_value, clip_value]`."""
        moving = gradient.abs().amax(-1, keepdim=True) >= self.gtol
        y = y + moving * move
        return y if self.clip_value is None else y.clamp(-self.clip_value, self.clip_value)

    def extra_repr(self) -> str:
        return f"gtol={self.gtol}, clip_value={self.clip_value}"


class Nesterov(Momentum):
    r"""Gradient descent with Nesterov's momentum, as in the paper's listing:

    $$v \leftarrow \mu v - \alpha \nabla E(y + \mu v), \qquad y \leftarrow y + v.$$

    Steps may be bounded, set by set:

    $$v \leftarrow \mathrm{cut}_s(\mu v - \alpha\, c\, \nabla E(y + \mu v)),
      \qquad y \leftarrow y + v,$$

    where $\mathrm{cut}_s(a) = a / \max(1, \lVert a \rVert / s)$ and $c = \min(1, 1 / (\alpha L))$.
    $L$ is the largest curvature that the set has met, $\lVert g_k - g_{k-1} \rVert /
    \lVert p_k - p_{k-1} \rVert$ between the points $p$ where the gradients $g$ were taken. It costs
    no evaluation. Points so close that the difference may be rounding do not count.

    The paper's recipe takes its first step from a point where an untrained potential may be steep,
    and its loss is large until training has tamed that step. `momentum=0.5, max_step=0.5,
    curvature_safe=True` trains the median task to a fifteenth of the error of the defaults
    (measured in `docs/stability.md`).

    Args:
        learning_rate: initial step size $\alpha$, used exactly as given.
        momentum: $\mu$, at least 0 and less than 1; a momentum of 0 stays 0.
        max_step: $s$, the largest length of a step; None for no limit.
        curvature_safe: whether steps are shortened by $c$. $L$ is held constant in the derivative,
            so the gradient of `Unrolled` is not exact for a set where $c < 1$.
        gtol: a set keeps its y while its largest gradient component is below this. Its momentum
            continues, so it may move again.
        clip_value: clamp every component of y to `[-clip_value, clip_value]` after each step.
        learnable: whether step size and momentum are learned.

    Example:
        >>> solver = Nesterov(momentum=0.5, max_step=0.5, curvature_safe=True)
        >>> layer = equipool.EquilibriumAggregation(3, 8, solver=solver, steps=1)
        >>> bool((layer(100 * torch.randn(5, 3)).norm() <= 0.5001))
        True
    """

    looks_ahead = True

    def __init__(
        self, learning_rate: float = 0.125, momentum: float = 0.9, max_step: float | None = None,
        curvature_safe: bool = False, gtol: float = 0.0, clip_value: float | None = None,
        learnable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, momentum, gtol, clip_value, learnable, max_step)
        self.curvature_safe = curvature_safe

    def extra_repr(self) -> str:
        own = f"max_step={self.max_step}, curvature_safe={self.curvature_safe}"
        return f"{own}, {super().extra_repr()}"


class GradientDescent(Momentum):
    r"""Gradient descent with a learned step size, and with Polyak's momentum if wanted, whose
    gradient is taken at y itself:

    $$v \leftarrow \mu v - \alpha \nabla E(y), \qquad y \leftarrow y + v.$$

    With momentum, PyTorch Geometric's layer steps like this.

    Args:
        learning_rate: initial step size $\alpha$, used exactly as given.
        momentum: $\mu$, at least 0 and less than 1; a momentum of 0 stays 0.
        gtol: as in `Nesterov`.
        clip_value: as in `Nesterov`.
        learnable: whether step size and momentum are learned.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, solver=GradientDescent(0.1))
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([1, 8])
    """

    looks_ahead = False

    def __init__(
        self, learning_rate: float = 0.125, momentum: float = 0.0, gtol: float = 0.0,
        clip_value: float | None = None, learnable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, momentum, gtol, clip_value, learnable)
