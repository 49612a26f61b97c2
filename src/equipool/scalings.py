"""How the energy of a set is scaled with the number of its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipool.private_torch import is_exporting

EPSILON = 1e-8

ScalingName = Literal["log", "log-mean", "sum", "mean"]


class Weights(NamedTuple):
    """Weights of the two parts of a set's energy, `[num_rows, 1]` each."""

    regularizer: Tensor
    potential: Tensor


# Under any scaling an empty set has weights of 0: it has no energy, and its output is the start.


def log(counts: Tensor) -> Weights:
    """The paper's Eq. 8: the whole energy times `log2(N + 1) / (N + eps)`."""
    weight = torch.log2(counts + 1) / (counts + EPSILON)
    if is_exporting():  # to ONNX, which takes so small a number for 0: an empty set's would be nan
        weight = torch.where(counts > 0, weight, 0)
    return Weights(weight, weight)


def log_mean(counts: Tensor) -> Weights:
    """`R + log2(N + 1) mean F`. In contrast to `log`, the curvature that `R` gives the energy does
    not vanish in large sets, so that as many steps reach the minimum of a set of any size."""
    occupied = counts.clamp(max=1)
    return Weights(occupied, torch.log2(counts + 1) / counts.clamp(min=1))


def sum(counts: Tensor) -> Weights:
    """The energy without scaling, `R + sum F`."""
    occupied = counts.clamp(max=1)
    return Weights(occupied, occupied)


def mean(counts: Tensor) -> Weights:
    """`R + mean F`: independent of the number of elements, so `R` must not be divided by it."""
    occupied = counts.clamp(max=1)
    return Weights(occupied, occupied / counts.clamp(min=1))


SCALINGS: dict[str, Callable[[Tensor], Weights]] = {
    "log": log, "log-mean": log_mean, "sum": sum, "mean": mean,
}  # fmt: skip


def scaling_weights(name: ScalingName, counts: Tensor, dtype: torch.dtype) -> Weights:
    """Weights of each row's energy, from the rows' counts of elements, `[num_rows]`."""
    return SCALINGS[name](counts.to(dtype).unsqueeze(-1))
