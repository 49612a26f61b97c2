"""Solving some sets again."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.potentials.base import drops_units
from equipool.sets import Sets, empty_invalid_sets
from equipool.sharding import refuse_sharded
from equipool.solution import make_solution
from equipool.steps import Steps


class Solved(NamedTuple):
    """The outputs of sets, and how they were found."""

    y: Tensor  # [B, K], float32 or better
    energy: Tensor  # [B]
    residual: Tensor  # [B]
    converged: Tensor  # [B]
    steps: Tensor  # [B]
    error_bound: Tensor | None = None  # [B]


def solve(
    layer: EquilibriumAggregation, steps: Steps, x: Tensor, sets: Sets, y: Tensor | None
) -> Solved:
    """Solve sets to a tolerance, at rest from their last outputs `y [B, K]`, or from scratch."""
    refuse_sharded("the solve of a Stream")
    check_steps(steps)
    _check_draws_nothing(layer)
    layer.check_fits(x)
    budget = steps.budget(training=False)
    x, sets = empty_invalid_sets(x, sets)
    search = layer.search(x, sets, budget, keep_squared_gradient=False)
    if y is not None:
        # An empty set stays where it starts: it has no energy.
        warm = (sets.counts > 0) & torch.isfinite(y).all(-1)
        search = search._replace(start=torch.where(warm.unsqueeze(-1), y, search.start))
    descent = search.solve()
    found = make_solution(x, sets, budget, descent, search.objective)
    assert found.energy is not None  # with a search there are diagnostics
    assert found.residual is not None
    assert found.converged is not None
    return Solved(
        sets.mark(descent.y), found.energy, found.residual, found.converged, found.steps,
        found.error_bound,
    )  # fmt: skip


def check_steps(steps: Steps) -> None:
    """Require a rule that stops at a tolerance."""
    if steps.budget(training=False).stop_at is None:
        raise ValueError(
            f"steps is {steps!r}, expected a rule that stops at a tolerance, so that outputs do "
            "not depend on earlier edits: pass steps=ToTolerance(1e-3, max_steps=1000)"
        )


def _check_draws_nothing(layer: EquilibriumAggregation) -> None:
    """Reject a layer whose energy or start is another at each call."""
    if drops_units(layer) or not layer.start.recordable:
        raise RuntimeError(
            "the layer is in training mode with dropout or a random start, expected the same "
            "energy and start at each solve: call layer.eval()"
        )


def elements_like(layer: EquilibriumAggregation) -> Tensor:
    """No elements `[0, C]`, in the dtype and on the device of the layer's."""
    tensors = chain(layer.parameters(), layer.buffers())
    own = next((one for one in tensors if one.is_floating_point()), torch.empty(0))
    return own.detach().new_empty(0, layer.in_channels)
