"""Features of similar size, whatever their units."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from equipool.estimators.bags import Array, Bags
from equipool.settings import Range
from equipool.tables import listed

Positive = Annotated[float, Range(above=0)]
SAMPLE = 10_000  # values that tell whether a feature keeps its resolution
ROWS = 1 << 16  # at a time, so that no copy of all elements is made


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""$(x - \mu) / \sigma$ in each feature, clipped to $[-c, c]$."""

    mean: Array  # [d]
    scale: Array  # [d]; 1 for a constant feature
    clip: float = np.inf

    def __call__(self, elements: Array, dtype: Any = np.float32) -> Array:
        """Scaled elements, computed in float64 and then rounded."""
        scaled = np.empty(elements.shape, dtype)
        for start in range(0, len(elements), ROWS):
            rows = slice(start, start + ROWS)
            standardized = (elements[rows] - self.mean) / self.scale
            scaled[rows] = np.clip(standardized, -self.clip, self.clip)
        return scaled


def measure_scaling(bags: Bags, weights: Array | None = None, clip: float | None = None) -> Scaling:
    """Mean and standard deviation of the elements, every bag counting alike, or by its weight:
    without that a few large bags would decide."""
    sizes = bags.sizes
    weights = np.ones(len(bags)) if weights is None else weights
    of_elements = np.repeat(weights / np.maximum(sizes, 1), sizes)
    total = max(of_elements.sum(), np.finfo(float).tiny)
    blocks = [slice(start, start + ROWS) for start in range(0, len(of_elements), ROWS)]
    elements = bags.elements
    zero = np.zeros(bags.num_features)
    mean = sum((of_elements[rows] @ elements[rows] for rows in blocks), zero) / total
    squares = (of_elements[rows] @ (elements[rows] - mean) ** 2 for rows in blocks)
    deviation = np.sqrt(sum(squares, zero) / total)
    rounding = 4 * np.finfo(elements.dtype).eps * np.abs(mean)
    scale = np.where(deviation <= rounding, 1.0, deviation)
    return Scaling(mean, scale, np.inf if clip is None else float(clip))


def warn_of_lost_resolution(bags: Bags, scaling: Scaling, dtype: Any) -> None:
    """Warn about features whose different values become equal: before, because they are float32, or
    when they are scaled and rounded to a dtype."""
    lost = []
    for number, name in enumerate(bags.names or range(bags.num_features)):
        values = bags.elements[:, number]
        low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
        step = np.spacing(max(abs(low), abs(high)))
        if low < high and step > (high - low) / 100:
            lost.append(f"{name} (steps of {step:g} in {high - low:g})")
            continue
        column = Scaling(scaling.mean[[number]], scaling.scale[[number]])
        if whole := high - low > 2 / np.finfo(dtype).eps and not (values % 1).any():
            distinct = np.unique(values)
        else:  # close fractions may become equal, but not most of them
            distinct = np.unique(values[:: -(-len(values) // SAMPLE) or 1])
        left = len(np.unique(column(distinct[:, None], dtype)))
        if left < (len(distinct) if whole else len(distinct) / 2):
            lost.append(f"{name} ({len(distinct):,} values become {left:,})")
    if lost:
        warnings.warn(
            f"features whose values {bags.elements.dtype} input or {np.dtype(dtype)} training "
            f"cannot tell apart: {listed(lost)}. Pass float64, subtract an offset first, leave out "
            "marks of missing values, such as 0 among dates, or split them into two features",
            stacklevel=3,
        )
