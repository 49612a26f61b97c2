"""Whether a layer has reached a minimum: over the number of steps, and from other starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_part
from equipool.inference import in_evaluation_mode
from equipool.sets import Sets
from equipool.solution import Solution
from equipool.steps import FixedSteps

STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class AfterSteps(NamedTuple):
    """What a number of steps gives."""

    num_steps: int

    distance: float
    """Root mean squared distance to y after the most steps, as a fraction of y's root mean square.
    """

    residual: float
    """Median over the sets of the largest component of the gradient."""

    residual_99: float
    """99 % quantile of the same."""

    converged: float
    """Fraction of the sets that have converged."""


@dataclass(frozen=True)
class PathIndependence:
    """The result of `path_independence`."""

    rows: tuple[AfterSteps, ...]
    """What each number of steps gives, from the layer's own start."""

    alignment: float
    """The asymptotic alignment score of
    [Anil and others, 2022](https://arxiv.org/abs/2211.09961): cosine similarity between the y from
    the layer's own start and that from a random start, averaged over sets and starts; 1 if the
    start does not matter."""

    start_distance: float
    """Root mean squared distance between these two, as a fraction of y's root mean square."""


@torch.no_grad()
def path_independence(
    layer: EquilibriumAggregation,
    x: Tensor,
    index: Tensor | Sets | None = None,
    *,
    ptr: Tensor | None = None,
    mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None,
    steps: Sequence[int] = STEPS,
    num_starts: int = 10,
) -> PathIndependence:
    """Measure whether a layer's output depends on the number of steps and on the start.

    If the search has reached a minimum, further steps change nothing; if there is one minimum, the
    start does not matter either. Networks trained with a fixed number of steps usually stop on the
    way. The layer is measured in evaluation mode; sets that are empty or not finite are left out.

    Args:
        layer: the layer, which is not changed.
        x: elements; `index`, `ptr`, `mask`, `dim_size` and `weight` as in the layer's call.
        steps: numbers of steps. Distances are to y after the largest.
        num_starts: number of random starts, 1 or more, always the same. Their standard deviation is
            the root mean square of y, so that they are as far from zero as the outputs.

    Example:
        >>> mean = equipool.potentials.FrechetMean(torch.nn.PairwiseDistance())
        >>> layer = equipool.EquilibriumAggregation(
        ...     3, 3, potential=mean, regularizer=0, scaling="mean", solver=equipool.Newton()
        ... )
        >>> found = equipool.diagnostics.path_independence(layer, torch.randn(9, 3), steps=(1, 2))
        >>> round(found.alignment, 4), found.rows[-1].converged
        (1.0, 1.0)
    """
    check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
    numbers = sorted({*steps})
    layer = in_evaluation_mode(layer)

    layout: dict[str, Any] = {"ptr": ptr, "mask": mask, "dim_size": dim_size, "weight": weight}

    def solve(num_steps: int, start: Tensor | None = None) -> Solution:
        steps = FixedSteps(num_steps, layer.steps.tolerance)
        return layer.solve(x, index, **layout, start=start, steps=steps)

    solutions = [solve(number) for number in numbers]
    last = solutions[-1]
    kept = last.occupied & torch.stack([one.finite for one in solutions]).all(0)
    if not kept.any():
        raise ValueError("no set has elements and a finite output, expected one or more")
    y = last.y[kept].double()
    scale = float(y.square().mean().sqrt())
    rows = []
    for number, one in zip(numbers, solutions, strict=True):
        converged = float(one.converged[kept].double().mean())
        distance = _distance(one.y[kept], y, scale)
        rows.append(AfterSteps(number, distance, *quantiles(one.residual[kept]), converged))
    found = []
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.manual_seed(0)
        for _ in range(num_starts):
            start = scale * torch.randn_like(last.y)
            found.append(solve(numbers[-1], start).y[kept].double())
    others = torch.stack(found)
    alignment = torch.nn.functional.cosine_similarity(others, y.expand_as(others), dim=-1)
    alignment = torch.where((others == y).all(-1), 1.0, alignment)
    return PathIndependence(tuple(rows), float(alignment.mean()), _distance(others, y, scale))


def quantiles(residuals: Tensor) -> tuple[float, float]:
    """Median and 99 % quantile `[N]` of residuals, of which one that is not a number is the
    largest. Few of them give their largest."""
    ordered = residuals.sort().values
    middle, large = (ordered[math.ceil(q * (len(ordered) - 1))] for q in (0.5, 0.99))
    return float(middle), float(large)


def _distance(one: Tensor, other: Tensor, scale: float) -> float:
    """Root mean squared difference as a fraction of the scale; 0 if there is none."""
    difference = float((one.double() - other).square().mean().sqrt())
    return difference / scale if difference else 0.0
