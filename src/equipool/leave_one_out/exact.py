"""The change of the minimum by searches without each part, which begin at y."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.leave_one_out.parts import Parts
from equipool.sets import Sets

# A search that starts within the tolerance must not stop there: it goes on to this part of it.
PRECISION = 1e-3

ELEMENTS_AT_ONCE = 1 << 17


def exact_changes(layer: EquilibriumAggregation, parts: Parts, y: Tensor) -> tuple[Tensor, Tensor]:
    """The change `[P, K]` of each set's minimum without the part, and whether the search reached
    the layer's tolerance, `[P]`. The minimum of the whole set is sought from y as well, so that
    what the layer's own search left does not count as a change."""
    whole, _ = _minimum(layer, parts.x, parts.sets, y)
    left = parts.counts[parts.set_of] - parts.sizes
    changes, reached = [y.new_zeros(0, y.shape[-1])], [parts.empties[:0]]
    for start, stop in parts.blocks(left, ELEMENTS_AT_ONCE):
        set_of = parts.set_of[start:stop]
        found, converged = _minimum(layer, *parts.remainders(start, stop), y[set_of])
        changes.append(found - whole[set_of])
        reached.append(converged)
    return torch.cat(changes), torch.cat(reached)


def _minimum(
    layer: EquilibriumAggregation, x: Tensor, sets: Sets, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The minimum of each set, sought from y, and whether its gradient is within the tolerance."""
    budget = layer.steps.budget(training=False)
    finer = budget._replace(stop_at=PRECISION * budget.converged_at)
    search = layer.search(x, sets, finer, keep_squared_gradient=False)._replace(start=y)
    found = search.solve().y
    residual = torch.linalg.vector_norm(search.objective.gradient(found), torch.inf, dim=-1)
    return found, residual <= budget.converged_at
