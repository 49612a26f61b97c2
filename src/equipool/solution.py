"""The result of a solve, and how to collect it from outside a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from equipool.descent import Descent
from equipool.objective import Bounds, Objective
from equipool.sets import Sets
from equipool.steps import Budget

# The error of a gradient, in units of rounding of the largest curvature.
ROUNDINGS = 16


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of a solve, for each set."""

    y: Tensor
    """`[B, K]` the outputs."""

    energy: Tensor | None
    """`[B]` energy at y."""

    residual: Tensor | None
    """`[B]` largest component of the energy's gradient at y, in absolute value."""

    converged: Tensor | None
    """`[B]` whether the residual is within the tolerance of the layer's `steps`; False for a set
    that is not finite."""

    finite: Tensor
    """`[B]` whether all elements of the set and its output are finite. Says nothing about
    gradients, which are known only after the backward pass."""

    occupied: Tensor
    """`[B]` whether the set has elements. An empty set stays at its start, where its residual is 0
    and it counts as converged."""

    aux_loss: Tensor
    """The auxiliary loss of Eq. 5: squared norm of the gradient, averaged over the steps, then over
    the sets that have elements. Differentiable."""

    trajectory: Tensor | None
    """`[num_steps + 1, B, K]`, y from the start to the end, if requested; fewer if all sets stopped
    earlier."""

    num_steps: int
    """The largest number of steps that a set could take."""

    steps: Tensor
    """`[B]` steps taken by each set; fewer than `num_steps` if it stopped at the tolerance."""

    error_bound: Tensor | None
    """`[B]` the largest possible distance from y to the minimum, `|g| / m` plus a little for
    rounding, where the energy is known to be strongly convex; infinite for a set whose energy is
    not. None if bounds of the curvature are not known or products are shorter than float32."""

    fallback: Tensor | None
    """`[B]` sets whose gradient is not the implicit one because they had not converged or their
    Hessian is not positive definite. The backward pass adds the sets that it finds. None unless the
    differentiation is `Implicit` and gradients are recorded."""

    squared_gradient: Tensor | None = None
    """`[B]` each set's part of the auxiliary loss: the squared norm of its gradient, averaged over
    the steps; 0 for a set that is empty or not finite. Differentiable."""

    def __repr__(self) -> str:
        counts = {"converged": self.converged, "fallback": self.fallback}
        known = [f"{name}={int(sets.sum())}" for name, sets in counts.items() if sets is not None]
        parts = [f"sets={self.y.shape[0]}", *known, f"num_steps={self.num_steps}"]
        return f"Solution({', '.join(parts)})"


def make_solution(
    x: Tensor, sets: Sets, budget: Budget, descent: Descent, energy: Objective | None
) -> Solution:
    """What a search found; with diagnostics if its energy is given."""
    energies = residual = converged = error_bound = None
    with torch.no_grad():
        finite = sets.real(torch.isfinite(sets.mark(descent.y)).all(-1))
        if energy is not None:
            gradient = sets.mark(energy.gradient(descent.y.detach()))
            residual = sets.real(gradient.abs().amax(-1))
            converged = finite & (residual <= budget.converged_at)
            if not _products_are_short(x):
                error_bound = _error_bound(gradient, descent.y, energy.bounds())
    if energy is not None:
        # No energy is taken where its gradient is not finite: it would reach other sets'.
        known = torch.isfinite(gradient).all(-1)
        point = torch.where(known.unsqueeze(-1), descent.y, 0)
        energies = sets.real(torch.where(known, energy.value(point), torch.nan))
    occupied = sets.counts > 0
    counted = occupied & torch.isfinite(descent.squared_gradient)
    squared_gradient = torch.where(counted, descent.squared_gradient, 0)
    if sets.valid is not None:
        occupied = occupied | ~sets.valid.squeeze(-1)
        if descent.fallback is not None:
            descent.fallback.logical_or_(~sets.valid.squeeze(-1))
    path = [sets.real(sets.mark(y)).to(x.dtype) for y in descent.trajectory]
    return Solution(
        y=sets.real(sets.mark(descent.y)).to(x.dtype),
        energy=energies,
        residual=residual,
        converged=converged,
        finite=finite,
        occupied=sets.real(occupied),
        aux_loss=squared_gradient.sum() / counted.sum().clamp(min=1),
        trajectory=torch.stack(path) if path else None,
        num_steps=budget.num_steps,
        steps=sets.real(descent.steps),
        error_bound=None if error_bound is None else sets.real(error_bound),
        fallback=None if descent.fallback is None else sets.real(descent.fallback),
        squared_gradient=sets.real(squared_gradient),
    )


def _error_bound(gradient: Tensor, y: Tensor, bounds: Bounds | None) -> Tensor | None:
    """`|y - y*| <= |g| / m` for an energy that is strongly convex with modulus m, plus some for the
    rounding of g. A set without elements has no energy, so its output is exact."""
    if bounds is None:
        return None
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

    def __init__(self) -> None:
        self.active: list[Solutions] = []


_recorders = _Recorders()


@contextmanager
def record(diagnostics: bool = True) -> Iterator[Solutions]:
    """Collect the `Solution` of every equilibrium layer that runs inside the block.

    Args:
        diagnostics: whether to compute energy, residual and convergence too, which costs one more
            evaluation of the potential and of its gradient. The auxiliary loss is free either way.

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
    _recorders.active.append(solutions)
    try:
        yield solutions
    finally:
        _recorders.active[:] = [one for one in _recorders.active if one is not solutions]


def active_recorders() -> list[Solutions]:
    """The recorders of this thread's open blocks, outermost first."""
    return _recorders.active
