"""Features of similar size, whatever their units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from equipool.estimators.bags import Array, Bags

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
    rounding = 100 * np.finfo(elements.dtype).eps * np.abs(mean)
    scale = np.where(deviation <= rounding, 1.0, deviation)
    return Scaling(mean, scale, np.inf if clip is None else float(clip))


def check_clip(clip: float | None) -> None:
    if clip is not None and not clip > 0:
        raise ValueError(f"clip is {clip!r}, expected more than 0, or None")
