"""Whether a layer has reached a minimum: over the number of steps, and from other starts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import as_count
from equipool.figures import make_figure, save_figure
from equipool.starts import NormalStart
from equipool.steps import Fixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class AfterSteps(NamedTuple):
    """What a number of steps gives: the root mean squared distance of y to that after the most
    steps, as a fraction of y's root mean square; median and 99 % quantile of the residuals; and the
    fraction of sets that have converged."""

    num_steps: int
    distance: float
    residual: float
    residual_99: float
    converged: float


@dataclass(frozen=True)
class PathIndependence:
    """The result of `path_independence`. Print it for a table."""

    rows: tuple[AfterSteps, ...]
    """What each number of steps gives, from the layer's own start."""

    alignment: float
    """The asymptotic alignment score of
    [Anil and others, 2022](https://arxiv.org/abs/2211.09961): cosine similarity between the y from
    the layer's own start and that from a random start, averaged over sets and starts; 1 if the
    start does not matter."""

    start_distance: float
    """Root mean squared distance between these two, as a fraction of y's root mean square."""

    num_starts: int
    """The number of random starts."""

    def __str__(self) -> str:
        lines = ["steps  distance  residual      99 %  converged"]
        for row in self.rows:
            lines.append(
                f"{row.num_steps:5}  {row.distance:8.2g}  {row.residual:8.2g}  "
                f"{row.residual_99:8.2g}  {row.converged:9.1%}"
            )
        lines.append(
            f"{self.num_starts} random starts after {self.rows[-1].num_steps} steps: alignment "
            f"{self.alignment:.4f}, distance {self.start_distance:.2g}"
        )
        return "\n".join(lines)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw distance and residual over the steps, and save the figure if `path` is given. Needs
        matplotlib."""
        figure = make_figure(7, 4)
        axes = figure.add_subplot()
        steps = [row.num_steps for row in self.rows]
        for name, line in (("distance", "o-"), ("residual", "s-"), ("residual_99", "s--")):
            values = [getattr(row, name) or float("nan") for row in self.rows]
            axes.plot(steps, values, line, label=name.replace("_99", ", 99 % of the sets"))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("steps")
        axes.set_title(f"alignment of {self.num_starts} random starts: {self.alignment:.4f}")
        axes.legend()
        if path is not None:
            save_figure(figure, path)
        return figure


def path_independence(
    layer: EquilibriumAggregation,
    x: Tensor,
    index: Tensor | None = None,
    *,
    ptr: Tensor | None = None,
    mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None,
    steps: Sequence[int] | int = STEPS,
    num_starts: int = 10,
    start_std: float | None = None,
    seed: int = 0,
) -> PathIndependence:
    """Measure whether a layer's output depends on the number of steps and on the start.

    If the search has reached a minimum, further steps change nothing; if there is one minimum, the
    start does not matter either. Networks trained with a fixed number of steps usually stop on the
    way. The layer is measured in evaluation mode; sets that are empty or not finite are left out.

    Args:
        layer: the layer, which is not changed.
        x: elements; `index`, `ptr`, `mask` and `dim_size` describe the sets as in the layer's call.
        steps: numbers of steps. Distances are to y after the largest.
        num_starts: number of random starts, 1 or more.
        start_std: standard deviation of the random starts. Default: the root mean square of y, so
            that they are as far from zero as the outputs.
        seed: of the random starts.

    Example:
        >>> layer = equipool.closed_form.mean(3)
        >>> found = path_independence(layer, torch.randn(9, 3), steps=(1, 2))
        >>> round(found.alignment, 4), found.rows[-1].converged
        (1.0, 1.0)
    """
    given = steps if isinstance(steps, Iterable) else (steps,)
    numbers = sorted({as_count("steps", number) for number in given})
    if not numbers:
        raise ValueError("steps is empty, expected one or more numbers")
    num_starts = as_count("num_starts", num_starts, least=1)
    layer = copy.deepcopy(layer).eval()
    solutions = []
    with torch.no_grad():
        for number in numbers:
            layer.steps = Fixed(number, layer.steps.tolerance)
            solutions.append(layer.solve(x, index, ptr=ptr, mask=mask, dim_size=dim_size))
        kept = solutions[-1].occupied & torch.stack([one.finite for one in solutions]).all(0)
        if not kept.any():
            raise ValueError("no set has elements and a finite output, expected one or more")
        y = solutions[-1].y[kept].double()
        scale = float(y.square().mean().sqrt())
        rows = []
        for number, one in zip(numbers, solutions, strict=True):
            assert one.residual is not None  # of a solve
            assert one.converged is not None
            distance = _distance(one.y[kept], y, scale)
            middle, large = quantiles(one.residual[kept])
            converged = float(one.converged[kept].double().mean())
            rows.append(AfterSteps(number, distance, middle, large, converged))
        layer.start = NormalStart(layer.out_channels, scale if start_std is None else start_std)
        layer.start.train()
        found = []
        with torch.random.fork_rng([x.device] if x.is_cuda else []):
            torch.manual_seed(seed)
            for _ in range(num_starts):
                other = layer(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
                found.append(other[kept].double())
    others = torch.stack(found)
    alignment = torch.nn.functional.cosine_similarity(others, y.expand_as(others), dim=-1)
    alignment = torch.where((others == y).all(-1), 1.0, alignment)
    return PathIndependence(
        tuple(rows), float(alignment.mean()), _distance(others, y, scale), num_starts
    )


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
