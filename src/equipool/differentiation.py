"""The loop of the solve, and how gradients pass through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from equipool.solvers import GradientFunction, Solver


class Descent(NamedTuple):
    """The way from the start to the output."""

    y: Tensor  # [num_rows, K] where it ended
    squared_gradient: Tensor  # [num_rows] squared norm of the gradient, averaged over the steps
    trajectory: tuple[Tensor, ...]  # y before the first and after each step


class Wanted(NamedTuple):
    """What of a descent is kept beside its end."""

    squared_gradient: bool = True
    trajectory: bool = False


def iterate(
    solver: Solver, gradient: GradientFunction, y: Tensor, num_steps: int, wanted: Wanted
) -> Descent:
    """Take the steps. This is the only loop."""
    state = solver.init(y)
    total = y.new_zeros(y.shape[0])
    path = [y] if wanted.trajectory else []
    for _ in range(num_steps):
        state = solver.step(gradient, state)
        if wanted.squared_gradient:
            total = total + state.gradient.square().sum(-1)
        if wanted.trajectory:
            path.append(state.y)
    return Descent(state.y, total / max(num_steps, 1), tuple(path))


class Differentiation(ABC):
    """How a solve is made differentiable."""

    @abstractmethod
    def __call__(
        self, solver: Solver, gradient: GradientFunction, y: Tensor, num_steps: int,
        wanted: Wanted,
    ) -> Descent:  # fmt: skip
        """Solve from `y`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Unrolled(Differentiation):
    """Differentiate through every step, as the paper does: the exact gradient of what was
    computed, converged or not."""

    def __call__(
        self, solver: Solver, gradient: GradientFunction, y: Tensor, num_steps: int,
        wanted: Wanted,
    ) -> Descent:  # fmt: skip
        return iterate(solver, gradient, y, num_steps, wanted)
