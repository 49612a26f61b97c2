"""Nesterov's method with the step size and momentum of a strongly convex energy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import Bounds, Objective
from equipool.ops.execution import values_are_at_hand
from equipool.solvers.base import Solver


class StronglyConvexState(NamedTuple):
    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    size: Tensor  # [num_rows, 1] step size
    momentum: Tensor  # [num_rows, 1]


class StronglyConvexNesterov(Solver[StronglyConvexState]):
    r"""Nesterov's method for an energy whose curvature is known to lie between $m > 0$ and $L$, as
    that of a `ConvexPotential` with a regulariser does, each set with its own:

    $$y \leftarrow p - \frac{1}{L} \nabla E(p), \qquad
      p \leftarrow y + \frac{\sqrt{\kappa} - 1}{\sqrt{\kappa} + 1} (y - y_{-1}), \qquad
      \kappa = L / m.$$

    It converges from anywhere: after t steps
    $E(y) - E(y^*) \le \frac{L + m}{2} \lVert y_0 - y^* \rVert^2 (1 - 1 / \sqrt{\kappa})^t$
    ([Nesterov 2004](https://doi.org/10.1007/978-1-4419-8853-9), Theorem 2.2.3). Nothing is learned;
    for differentiation the bounds are constants.

    On a GPU the bounds are not checked, because that would wait for the device: there a set whose
    energy is not strongly convex descends without momentum.

    Example:
        >>> from equipool.potentials import ConvexPotential
        >>> layer = equipool.EquilibriumAggregation(
        ...     3, 2, potential=ConvexPotential(3, 2), solver=StronglyConvexNesterov(),
        ...     steps=equipool.ToTolerance(1e-4, max_steps=1000),
        ... )
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> StronglyConvexState:
        bounds = objective.bounds()
        if bounds is None:
            raise ValueError(
                "the bounds of the energy's curvature are not known, expected known bounds for "
                "StronglyConvexNesterov: use a ConvexPotential and a SquaredNorm, or another solver"
            )
        _check(bounds)
        lower, upper = (bound.to(y.dtype).unsqueeze(-1) for bound in bounds)
        root = (lower.clamp(min=0) / upper).sqrt()  # of 1 / kappa
        momentum = torch.where(root > 0, (1 - root) / (1 + root), 0)
        size = torch.where(upper > 0, 1 / upper, 0)
        return StronglyConvexState(y, y, torch.zeros_like(y), size, momentum)

    def step(self, objective: Objective, state: StronglyConvexState) -> StronglyConvexState:
        g = objective.gradient(state.point)
        y = state.point - state.size * g
        return state._replace(y=y, point=y + state.momentum * (y - state.y), gradient=g)


def _check(bounds: Bounds) -> None:
    """Require positive curvature of every row, except rows without energy: their bounds are 0."""
    lower, upper = bounds
    if not values_are_at_hand(lower):
        return
    flat = (lower <= 0) & ~((lower == 0) & (upper == 0))
    if bool(flat.any()):
        raise ValueError(
            f"the curvature of {int(flat.sum())} sets is bounded from below by "
            f"{float(lower[flat].min()):.3g}, expected more than 0 for StronglyConvexNesterov: use "
            "a SquaredNorm of positive weight as the regularizer, or another solver"
        )
