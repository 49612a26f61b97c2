"""Differentiation by the implicit function theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipool.descent import Budget, Descent, Wanted
from equipool.differentiation.base import Differentiation
from equipool.differentiation.last_steps import check_num_steps, follow_last_steps
from equipool.linear_solvers import ConjugateGradients, LinearSolver
from equipool.objective import Objective
from equipool.ops.availability import shapes_are_fixed
from equipool.ops.derivatives import attach
from equipool.solvers.base import Solver

# A minimum that is farther off than this, or than this part of the output, has not been reached.
NEAR = 0.1

SECOND_GRADIENT = (
    "the gradient of an implicit gradient is not available: use differentiation=Unrolled(), and "
    "with it ResNetPotential(..., factored=False)"
)


class Implicit(Differentiation):
    r"""Differentiate the minimum itself, not the way to it. Where the energy's gradient
    $g(y, \theta)$ is zero and its Hessian $H$ positive definite,

    $$\frac{\partial y}{\partial \theta} = -H^{-1} \frac{\partial g}{\partial \theta},$$

    so the backward pass solves $H w = \partial L / \partial y$ for each set and passes $-w$ to
    $g$. Neither its cost nor the memory held for it grows with the number of steps.

    Sets that have not converged, or whose system could not be solved, get the gradient of
    `Truncated(fallback_steps)` instead. So do those whose energy is so flat that the minimum may be
    far in spite of a small gradient. `Solution.fallback` says which: sets that have not converged
    at once, the others when the backward pass has been run.

    What is learned, and by which gradient: elements, potential and regulariser by the implicit one.
    The solver's step size and momentum do not change a minimum, so their gradient is zero, and the
    start's, too, but for sets that never left it, such as empty ones. They are trained by the sets
    that fall back and by the auxiliary loss, which both pass gradients through the last
    `fallback_steps` steps.

    Args:
        linear_solver: solves the systems. Default: `ConjugateGradients()`.
        tolerance: a set has converged when no component of $g$ exceeds this. Default: the layer's
            tolerance. The error of the gradient is of the order of this, divided by the curvature.
        fallback_steps: how many steps the gradient passes through where a set falls back.

    In a program of fixed shapes, compiled or recorded as a CUDA graph, all of the linear solver's
    steps are taken, and those of the fallback: give it few.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, differentiation=Implicit())
        >>> layer.num_steps = 100
        >>> solution = layer.solve(torch.randn(5, 3))
        >>> solution.y.sum().backward()
        >>> solution.fallback
        tensor([False])
    """

    def __init__(
        self,
        linear_solver: LinearSolver | None = None,
        tolerance: float | None = None,
        fallback_steps: int = 5,
    ) -> None:
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"tolerance is {tolerance!r}, expected 0 or more")
        check_num_steps("fallback_steps", fallback_steps)
        self.linear_solver = linear_solver if linear_solver is not None else ConjugateGradients()
        self.tolerance = tolerance
        self.fallback_steps = fallback_steps

    def __call__(
        self, solver: Solver[Any], objective: Objective, y: Tensor, budget: Budget, wanted: Wanted
    ) -> Descent:
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "transforms of torch.func do not pass through Implicit(): use Unrolled()"
            )
        tolerance = budget.converged_at if self.tolerance is None else self.tolerance
        tail = follow_last_steps(self.fallback_steps, solver, objective, y, budget, wanted)
        if not torch.is_grad_enabled():
            return tail.descent
        end = tail.descent.y.detach()
        gradient = attach(objective.gradient(end), *solver.parameters())
        converged = gradient.detach().abs().amax(-1) <= tolerance
        system = System(
            linear_solver=self.linear_solver,
            objective=objective,
            y=end,
            gradient=gradient.detach(),
            converged=converged,
            unmoved=(end == y).all(-1),
            fallback=~converged,
            autocast=_autocast_as_it_is(y.device.type),
        )
        output = _Join.apply(system, end, tail.path, gradient, y)
        return tail.descent._replace(y=output, fallback=system.fallback)

    def __repr__(self) -> str:
        return f"Implicit({self.linear_solver!r}, {self.tolerance}, {self.fallback_steps})"


@dataclass(frozen=True, eq=False)
class System:
    """What the backward pass solves."""

    linear_solver: LinearSolver
    objective: Objective
    y: Tensor  # [num_rows, K] the end of the search
    gradient: Tensor  # [num_rows, K] there
    converged: Tensor  # [num_rows]
    unmoved: Tensor  # [num_rows] whether it is the start
    fallback: Tensor  # [num_rows] rows whose gradient is that of the last steps; added to
    autocast: torch.autocast  # as in the forward pass

    def adjoints(self, by_y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """What the derivative by the output gives to the path of the last steps, to the gradient
        at the output, and to the start."""
        wanted = torch.where(self.converged.unsqueeze(-1), by_y, 0)
        if not shapes_are_fixed() and not bool(self.converged.any()):
            nothing = torch.zeros_like(by_y)
            return by_y, nothing, nothing
        with self.autocast:
            w, solved, _ = self.linear_solver(self.objective.hessian(self.y), wanted)
        # No curvature at all in the direction that is asked for: an empty set, which stays at its
        # start, or a minimum that is not unique.
        flat = wanted.any(-1) & ~w.any(-1)
        implicit = self.converged & solved & self._is_near(w, wanted) & (self.unmoved | ~flat)
        self.fallback.logical_or_(~implicit)
        by_start = torch.where((implicit & flat).unsqueeze(-1), by_y, 0)
        by_gradient = torch.where(implicit.unsqueeze(-1), -w, 0)
        if not shapes_are_fixed() and bool(implicit.all()):
            return None, by_gradient, by_start
        return torch.where(implicit.unsqueeze(-1), 0, by_y), by_gradient, by_start

    def _is_near(self, w: Tensor, by_y: Tensor) -> Tensor:
        """Whether the minimum is near. Where the energy is nearly flat, a small gradient does not
        say so: with the curvature along w, which is about |by_y| / |w|, it is |g| |w| / |by_y|
        away."""
        y, g, w, by_y = (rows.norm(dim=-1) for rows in (self.y, self.gradient, w, by_y))
        return g * w <= NEAR * y.clamp(min=1) * by_y


class _Join(torch.autograd.Function):
    """The output, whose gradient is the implicit one or that of the path, row by row."""

    @staticmethod
    def forward(
        ctx: Any, system: System, y: Tensor, path: Tensor, gradient: Tensor, start: Tensor
    ) -> Tensor:
        ctx.system = system
        return y.clone()

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor | None, ...]:
        # Gradients are recorded in a backward pass only to be differentiated again.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(SECOND_GRADIENT)
        return None, None, *ctx.system.adjoints(by_y)


def _autocast_as_it_is(device: str) -> torch.autocast:
    return torch.autocast(
        device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    )
