"""How close one gradient is to another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Agreement:
    """Of a gradient with the exact one. Both are nan where either is not finite."""

    cosine: float
    """Of the angle between the two: 1 where they point the same way. 0 where one of them is zero
    and the other is not."""

    relative_error: float
    """Norm of the difference over the norm of the exact one; infinite where that is zero and the
    other is not."""


def agreement(found: Tensor, exact: Tensor) -> Agreement:
    r"""$\frac{\langle g, e \rangle}{|g| |e|}$ and $\frac{|g - e|}{|e|}$ of two vectors `[n]`.

    Example:
        >>> agreement(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
        Agreement(cosine=1.0, relative_error=2.0)
    """
    # Divided by their largest components first, so that no square is out of range.
    scales = _largest(found), _largest(exact)
    if not all(map(math.isfinite, scales)):
        return Agreement(math.nan, math.nan)
    if 0.0 in scales:
        same = scales[0] == scales[1]
        return Agreement(float(same), 0.0 if same else (1.0 if scales[1] else math.inf))
    g, e = found.double() / scales[0], exact.double() / scales[1]
    cosine = float(g @ e / (g.norm() * e.norm()))
    larger = max(scales)
    difference = g * (scales[0] / larger) - e * (scales[1] / larger)
    error = float(difference.norm() / e.norm()) * (larger / scales[1])
    return Agreement(max(-1.0, min(1.0, cosine)), error)


def _largest(vector: Tensor) -> float:
    return float(vector.double().abs().max()) if vector.numel() else 0.0
