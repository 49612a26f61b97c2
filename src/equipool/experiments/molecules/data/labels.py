"""What labels are like."""

from __future__ import annotations

import torch
from torch import Tensor


def label_moments(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of `labels [G, L]`, missing ones (NaN) left out:
    `[L]`, `[L]`. Computed in float64: energies have long means and short deviations.

    A column without two different labels has deviation 1, so that dividing by it does no harm; one
    without labels has mean 0.

    Example:
        >>> label_moments(torch.tensor([[1.0, 5.0], [3.0, float("nan")]]))
        (tensor([2., 5.]), tensor([1., 1.]))
    """
    known = ~labels.isnan()
    numbers = labels.double().masked_fill(~known, 0)
    count = known.sum(0).clamp(min=1)
    mean = numbers.sum(0) / count
    variance = (numbers - mean).masked_fill(~known, 0).square().sum(0) / count
    deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
    return mean.to(labels.dtype), deviation.to(labels.dtype)
