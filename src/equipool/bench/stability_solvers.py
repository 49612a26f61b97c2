"""A step size that is learned below a bound: measured beside the rest, and not worth having."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipool.scalars import LearnedScalar
from equipool.solvers import RestrainedNesterov


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


def with_bounded_rate(bound: float) -> RestrainedNesterov:
    """Nesterov's momentum as it starts by default, its step size below a bound."""
    solver = RestrainedNesterov()
    solver.raw_learning_rate = BoundedScalar("learning_rate", 0.125, bound)
    return solver
