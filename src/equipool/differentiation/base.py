"""What a way to differentiate is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from equipool.descent import Budget, Descent, Wanted
from equipool.objective import Objective
from equipool.solvers.base import Solver


class Differentiation(ABC):
    """How a solve is made differentiable."""

    @abstractmethod
    def __call__(
        self, solver: Solver[Any], objective: Objective, y: Tensor, budget: Budget, wanted: Wanted
    ) -> Descent:
        """Solve from `y`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
