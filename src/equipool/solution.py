"""What a solve found, and how to get hold of it from outside a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Solution:
    """The outcome of a solve, set by set."""

    y: Tensor
    """`[B, K]` the outputs."""

    energy: Tensor | None
    """`[B]` energy at y."""

    residual: Tensor | None
    """`[B]` largest component of the energy's gradient at y, in absolute value."""

    converged: Tensor | None
    """`[B]` whether the residual is within the layer's tolerance; never for a non-finite set."""

    finite: Tensor
    """`[B]` whether all elements of the set and its output are finite."""

    occupied: Tensor
    """`[B]` whether the set has elements. One that has none stays at its start, where its residual
    is 0 and it counts as converged."""

    aux_loss: Tensor
    """The auxiliary loss of Eq. 5: squared norm of the gradient, averaged over the steps, then over
    the sets that have elements. Differentiable."""

    trajectory: Tensor | None
    """`[num_steps + 1, B, K]`, y from the start to the end, where it was asked for; fewer where all
    sets have stopped before."""

    num_steps: int
    """Steps taken, at most."""

    steps: Tensor
    """`[B]` steps taken by each set; fewer than `num_steps` where it reached the tolerance."""

    error_bound: Tensor | None
    """`[B]` how far y is from the minimum at most, `|g| / m` and a little for rounding, where the
    energy is known to be strongly convex; infinite for a set where it is not. None where bounds of
    the curvature are not known, or products are shorter than float32."""

    fallback: Tensor | None
    """`[B]` sets whose gradient is not the implicit one, because they had not converged or their
    Hessian is not positive definite. What the backward pass finds out is added there. None unless
    the differentiation is `Implicit` and gradients are recorded."""

    def __repr__(self) -> str:
        counts = {"converged": self.converged, "fallback": self.fallback}
        known = [f"{name}={int(sets.sum())}" for name, sets in counts.items() if sets is not None]
        parts = [f"sets={self.y.shape[0]}", *known, f"num_steps={self.num_steps}"]
        return f"Solution({', '.join(parts)})"


class Solutions(list[Solution]):
    """The solutions recorded in a `with equipool.record()` block, in the order of their solves."""

    def __init__(self, diagnostics: bool) -> None:
        super().__init__()
        self.diagnostics = diagnostics

    @property
    def aux_loss(self) -> Tensor:
        """The auxiliary losses' sum over the layers; 0 where no equilibrium layer ran."""
        return sum((solution.aux_loss for solution in self), start=torch.zeros(()))


_recorders: list[Solutions] = []


@contextmanager
def record(diagnostics: bool = True) -> Iterator[Solutions]:
    """Collect the `Solution` of every equilibrium layer that runs inside the block.

    Args:
        diagnostics: whether energy, residual and convergence are computed as well, for one more
            evaluation of the potential and of its gradient; the auxiliary loss costs nothing
            either way.

    The block collects from all threads. A layer inside `torch.utils.checkpoint` cannot be recorded
    from outside, as it runs again in the backward pass: return its `solve` from there instead.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> model = torch.nn.Sequential(layer, torch.nn.Linear(8, 1))
        >>> with equipool.record() as solutions:
        ...     out = model(torch.randn(5, 3))
        >>> loss = out.square().mean() + 1e-4 * solutions.aux_loss
    """
    solutions = Solutions(diagnostics)
    _recorders.append(solutions)
    try:
        yield solutions
    finally:
        _recorders[:] = [other for other in _recorders if other is not solutions]


def active_recorders() -> list[Solutions]:
    """The recorders of the blocks that are being run, outermost first."""
    return _recorders
