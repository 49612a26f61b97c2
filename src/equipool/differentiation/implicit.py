"""Differentiation by the implicit function theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from equipool.checks import as_count
from equipool.descent import Descent, Differentiation, Search
from equipool.differentiation.last_steps import follow_last_steps
from equipool.linear_solvers import Cholesky, ConjugateGradients
from equipool.objective import Objective
from equipool.ops.derivatives import attach
from equipool.ops.execution import shapes_are_fixed
from equipool.private_torch import is_transforming

# A minimum that is further away than this, or than this fraction of the output, was not reached.
NEAR = 0.1

SECOND_GRADIENT = (
    "the gradient of an implicit gradient is not available: use differentiation=Unrolled(), and "
    "with it ResNetPotential(..., factored=False)"
)


class Implicit(Differentiation):
    r"""Differentiate the minimum itself, not the steps towards it. Where the energy's gradient
    $g(y, \theta)$ is zero and its Hessian $H$ positive definite,

    $$\frac{\partial y}{\partial \theta} = -H^{-1} \frac{\partial g}{\partial \theta},$$

    so the backward pass solves $H w = \partial L / \partial y$ for each set and passes $-w$ to
    $g$. Neither its time nor its memory grows with the number of steps.

    Sets that have not converged, or whose system could not be solved, get the gradient of
    `Truncated(fallback_steps)` instead. The same applies where the energy is too flat for a small
    gradient to imply a nearby minimum. `Solution.fallback` marks them: sets that have not
    converged immediately, the others after the backward pass.

    Elements, potential and regulariser are trained by the implicit gradient. The solver's step size
    and momentum do not change a minimum, so their gradient is zero; so is that of the start, except
    for sets that never left it, such as empty ones. They are trained by the sets that fall back and
    by the auxiliary loss, which pass gradients through the last `fallback_steps` steps.

    Args:
        linear_solver: solves the systems. `"cg"`, conjugate gradients, takes a few products with
            each Hessian; `"cholesky"` assembles it from K products, for outputs of up to a few
            dozen, and finds every negative curvature.
        tolerance: a set counts as converged when no component of its gradient $g$ exceeds this.
            Default: the tolerance of the layer's `steps`. The error of the gradient is of the order
            of this, divided by the curvature.
        fallback_steps: the number of last steps to differentiate through for a set that falls back.
        max_products: the largest number of products that `"cg"` takes. Sets that need more fall
            back.

    In a program of fixed shapes, compiled or captured as a CUDA graph, the linear solver and the
    fallback always take all of their steps: allow only a few.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, differentiation=Implicit(), steps=100)
        >>> solution = layer.solve(torch.randn(5, 3))
        >>> solution.y.sum().backward()
        >>> solution.fallback
        tensor([False])
    """

    capturable = False  # control flow depends on tensor values

    def __init__(
        self,
        linear_solver: Literal["cg", "cholesky"] = "cg",
        tolerance: float | None = None,
        fallback_steps: int = 5,
        max_products: int = 100,
    ) -> None:
        if linear_solver not in ("cg", "cholesky"):
            raise ValueError(f"linear_solver is {linear_solver!r}, expected 'cg' or 'cholesky'")
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"tolerance is {tolerance!r}, expected 0 or more")
        self.tolerance = tolerance
        self.fallback_steps = as_count("fallback_steps", fallback_steps, least=1)
        self._max_products = as_count("max_products", max_products, least=1)
        # made here and not where it is called, because torch.compile cannot call what it has made
        self._linear_solver = (
            Cholesky() if linear_solver == "cholesky" else ConjugateGradients(self._max_products)
        )

    @property
    def linear_solver(self) -> Literal["cg", "cholesky"]:
        return "cholesky" if isinstance(self._linear_solver, Cholesky) else "cg"

    @property
    def max_products(self) -> int:
        return self._max_products

    def __call__(self, search: Search) -> Descent:
        if is_transforming():
            raise RuntimeError(
                "transforms of torch.func do not pass through Implicit(): use Unrolled()"
            )
        descent, path = follow_last_steps(search, self.fallback_steps)
        if not torch.is_grad_enabled():
            return descent
        tolerance = search.budget.converged_at if self.tolerance is None else self.tolerance
        start, end = search.start, descent.y.detach()
        gradient = attach(search.objective.gradient(end), *search.solver.parameters())
        converged = gradient.detach().abs().amax(-1) <= tolerance
        system = AdjointSystem(
            linear_solver=self._linear_solver,
            objective=search.objective,
            y=end,
            gradient=gradient.detach(),
            converged=converged,
            unmoved=(end == start).all(-1),
            fallback=~converged,
            autocast=_current_autocast(end.device.type),
        )
        output = _Join.apply(system, end, path, gradient, start)
        return descent.at(output)._replace(fallback=system.fallback)

    def __repr__(self) -> str:
        return (
            f"Implicit({self.linear_solver!r}, {self.tolerance}, {self.fallback_steps}, "
            f"{self.max_products})"
        )


@dataclass(frozen=True, eq=False)
class AdjointSystem:
    """The linear systems that the backward pass solves."""

    linear_solver: Cholesky | ConjugateGradients
    objective: Objective
    y: Tensor  # [num_rows, K] the end of the search
    gradient: Tensor  # [num_rows, K] there
    converged: Tensor  # [num_rows]
    unmoved: Tensor  # [num_rows] whether it is the start
    fallback: Tensor  # [num_rows] rows whose gradient is that of the last steps; added to
    autocast: torch.autocast  # as in the forward pass

    def adjoints(self, by_y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Cotangents of the last steps' path, of the gradient at the output and of the start, given
        that of the output."""
        wanted = torch.where(self.converged.unsqueeze(-1), by_y, 0)
        if not shapes_are_fixed() and not bool(self.converged.any()):
            nothing = torch.zeros_like(by_y)
            return by_y, nothing, nothing
        with self.autocast:
            w, solved, _ = self.linear_solver(self.objective.hessian(self.y), wanted)
        # No curvature at all in the wanted direction: an empty set, which stays at its start, or a
        # minimum that is not unique.
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
        imply that: with the curvature along w, about |by_y| / |w|, the minimum is
        |g| |w| / |by_y| away."""
        y, g, w, by_y = (rows.norm(dim=-1) for rows in (self.y, self.gradient, w, by_y))
        return g * w <= NEAR * y.clamp(min=1) * by_y


class _Join(torch.autograd.Function):
    """The output, whose gradient is the implicit one or that of the path, row by row."""

    @staticmethod
    def forward(
        ctx: Any, system: AdjointSystem, y: Tensor, path: Tensor, gradient: Tensor, start: Tensor
    ) -> Tensor:
        ctx.system = system
        return y.clone()

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor | None, ...]:
        # Gradients are recorded in a backward pass only to be differentiated again.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(SECOND_GRADIENT)
        return None, None, *ctx.system.adjoints(by_y)


def _current_autocast(device: str) -> torch.autocast:
    return torch.autocast(
        device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    )
