"""Differentiation through every step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from equipool.descent import Budget, Descent, Wanted, arrive, iterate, set_out
from equipool.differentiation.base import Differentiation
from equipool.objective import Objective
from equipool.solvers.base import Solver


class Unrolled(Differentiation):
    """Differentiate through every step, as the paper does: the exact gradient of what was
    computed, converged or not."""

    def __call__(
        self, solver: Solver[Any], objective: Objective, y: Tensor, budget: Budget, wanted: Wanted
    ) -> Descent:
        walk = set_out(solver, objective, y, budget, wanted)
        return arrive(iterate(solver, objective, walk, budget, wanted))
