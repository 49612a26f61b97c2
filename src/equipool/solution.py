"""The result of a solve, and how to collect it from outside a model."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.descent import Descent, outputs_of
from equipool.objective import Bounds, Objective
from equipool.sets import Sets
from equipool.steps import Budget

# The error of a gradient, in units of rounding of the largest curvature.
ROUNDINGS = 16


class ConvergenceWarning(UserWarning):
    """A search ended before its minimum, so that what was asked of the minimum is not known."""


def warn_of(chosen: Tensor, what: str) -> None:
    """Warn the caller's caller of how many are chosen, and of what that means."""
    if chosen.any():
        count = f"{int(chosen.sum())} of {len(chosen)}"
        warnings.warn(f"{count} {what}", ConvergenceWarning, stacklevel=3)


class Diagnostics(NamedTuple):
    """What one more evaluation of the energy and of its gradient finds out, `[B]` each."""

    energy: Tensor
    residual: Tensor
    converged: Tensor
    error_bound: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """The result of a solve, for each set."""

    y: Tensor
    """`[B, K]` the outputs."""

    finite: Tensor
    """`[B]` whether all elements of the set and its output are finite. Says nothing about
    gradients, which are known only after the backward pass."""

    occupied: Tensor
    """`[B]` whether the set has elements. An empty set stays at its start, where its residual is 0
    and it counts as converged."""

    num_steps: Tensor
    """`[B]` steps taken by each set; fewer than `max_steps` if it stopped at the tolerance."""

    max_steps: int
    """The largest number of steps that a set could take."""

    aux_loss: Tensor
    """The auxiliary loss of Eq. 5: squared norm of the gradient, averaged over the steps, then over
    the sets that have elements. Differentiable."""

    squared_gradient: Tensor
    """`[B]` each set's part of the auxiliary loss: the squared norm of its gradient, averaged over
    the steps; 0 for an empty or non-finite set. Differentiable."""

    fallback: Tensor
    """`[B]` sets whose gradient is not the one that the differentiation is named after: with
    `Implicit` those that had not converged or whose Hessian is not positive definite. The backward
    pass adds the sets that it finds."""

    _trajectory: Tensor | None = None
    _diagnostics: Diagnostics | None = None

    def __repr__(self) -> str:
        return f"Solution(sets={self.y.shape[0]}, max_steps={self.max_steps})"

    @property
    def energy(self) -> Tensor:
        """`[B]` energy at y."""
        return self._diagnosed.energy

    @property
    def residual(self) -> Tensor:
        """`[B]` largest component of the energy's gradient at y, in absolute value."""
        return self._diagnosed.residual

    @property
    def converged(self) -> Tensor:
        """`[B]` whether the residual is within the tolerance of the layer's `steps`, or with the
        solver `Exact` the minimum was reached; False for a non-finite set."""
        return self._diagnosed.converged

    @property
    def error_bound(self) -> Tensor:
        """`[B]` the largest possible distance from y to the minimum, `|g| / m` plus a little for
        rounding, where the energy is known to be strongly convex. Infinite for a set whose energy
        is not, if bounds of the curvature are not known, or if products are shorter than
        float32."""
        return self._diagnosed.error_bound

    @property
    def trajectory(self) -> Tensor:
        """`[max_steps + 1, B, K]`, y from the start to the end; fewer if all sets stopped
        earlier."""
        if self._trajectory is None:
            raise RuntimeError("the trajectory was not kept: pass trajectory=True to solve")
        return self._trajectory

    @property
    def _diagnosed(self) -> Diagnostics:
        if self._diagnostics is None:
            raise RuntimeError(
                "energy, residual, converged and error_bound were not computed: use "
                "equipool.record(diagnostics=True), or layer.solve"
            )
        return self._diagnostics


def make_solution(
    x: Tensor, sets: Sets, budget: Budget, descent: Descent, energy: Objective | None
) -> Solution:
    """What a search found; with diagnostics if its energy is given."""
    finite = sets.real(torch.isfinite(sets.mark(descent.y.detach())).all(-1))
    diagnostics = None
    if energy is not None:
        error = getattr(descent.state, "error", None)
        diagnostics = _diagnose(x, sets, finite, budget, descent.y, energy, error)
    y, squared_gradient, num_steps = outputs_of(descent)
    occupied = sets.counts > 0
    counted = occupied & torch.isfinite(squared_gradient)
    squared_gradient = torch.where(counted, squared_gradient, 0)
    fallback = descent.fallback
    if fallback is None:
        fallback = torch.zeros_like(counted)
    if sets.valid is not None:
        occupied = occupied | ~sets.valid.squeeze(-1)
        if descent.fallback is not None:
            fallback.logical_or_(~sets.valid.squeeze(-1))  # in place: the backward pass adds to it
    path = [sets.real(sets.mark(point)).to(x.dtype) for point in descent.path]
    return Solution(
        y=sets.real(sets.mark(y)).to(x.dtype),
        finite=finite,
        occupied=sets.real(occupied),
        num_steps=sets.real(num_steps),
        max_steps=budget.num_steps,
        aux_loss=squared_gradient.sum() / counted.sum().clamp(min=1),
        squared_gradient=sets.real(squared_gradient),
        fallback=sets.real(fallback),
        _trajectory=torch.stack(path) if path else None,
        _diagnostics=diagnostics,
    )


def _diagnose(
    x: Tensor, sets: Sets, finite: Tensor, budget: Budget, y: Tensor, energy: Objective,
    error: Tensor | None,
) -> Diagnostics:  # fmt: skip
    with torch.no_grad():
        gradient = sets.mark(energy.gradient(y.detach()))
        residual = sets.real(gradient.abs().amax(-1))
        if error is None:
            bounds = None if _products_are_short(x) else energy.bounds()
            error_bound = sets.real(_error_bound(gradient, y, bounds))
        else:
            error_bound = sets.real(error)
    # No energy is taken where its gradient is non-finite: it would reach other sets'.
    known = torch.isfinite(gradient).all(-1)
    point = torch.where(known.unsqueeze(-1), y, 0)
    energies = sets.real(torch.where(known, energy.value(point), torch.nan))
    reached = residual <= budget.converged_at if error is None else error_bound < torch.inf
    converged = finite & reached
    return Diagnostics(energies, residual, converged, error_bound)


def _error_bound(gradient: Tensor, y: Tensor, bounds: Bounds | None) -> Tensor:
    """`|y - y*| <= |g| / m` for an energy that is strongly convex with modulus m, plus some for the
    rounding of g. A set without elements has no energy, so its output is exact."""
    if bounds is None:
        return gradient.new_full(gradient.shape[:1], torch.inf)
    norm, size = (torch.linalg.vector_norm(rows, dim=-1) for rows in (gradient, y))
    rounding = ROUNDINGS * torch.finfo(y.dtype).eps * bounds.upper * (1 + size)
    bound = (norm + rounding) / bounds.lower
    return torch.where(bounds.upper == 0, norm, bound).nan_to_num(nan=torch.inf)


def _products_are_short(x: Tensor) -> bool:
    """Whether the gradient is not known to float32's precision."""
    autocast = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    return autocast or x.dtype.itemsize < 4


class Solutions(list[Solution]):
    """The solutions recorded in a `with equipool.record()` block, in the order of the calls."""

    def __init__(self, diagnostics: bool) -> None:
        super().__init__()
        self.diagnostics = diagnostics

    @property
    def aux_loss(self) -> Tensor:
        """The sum of the layers' auxiliary losses; 0 if no equilibrium layer ran."""
        return sum((solution.aux_loss for solution in self), start=torch.zeros(()))


class _Recorders(threading.local):
    """The recorders of this thread's blocks. Not a context variable: torch.compile cannot trace
    those."""

    active: tuple[Solutions, ...] = ()  # outermost first


recorders = _Recorders()


@contextmanager
def record(diagnostics: bool = False) -> Iterator[Solutions]:
    """Collect the `Solution` of every equilibrium layer that runs inside the block.

    Args:
        diagnostics: whether to compute energy, residual, convergence and error bound too, which
            costs one more evaluation of the potential and of its gradient. The auxiliary loss is
            free either way.

    The block collects from its own thread alone. A layer inside `torch.utils.checkpoint` cannot be
    recorded from outside because it runs again in the backward pass: return its `solve` from there
    instead.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> model = torch.nn.Sequential(layer, torch.nn.Linear(8, 1))
        >>> with equipool.record() as solutions:
        ...     out = model(torch.randn(5, 3))
        >>> loss = out.square().mean() + 1e-4 * solutions.aux_loss
    """
    solutions = Solutions(diagnostics)
    recorders.active = (*recorders.active, solutions)
    try:
        yield solutions
    finally:
        recorders.active = tuple(one for one in recorders.active if one is not solutions)
