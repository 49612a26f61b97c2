"""A point of the log, made of what the steps since the last one left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from equipool.training.step import COLUMNS


def point_of(columns: Mapping[str, Tensor], metrics: Sequence[str]) -> dict[str, Any]:
    """Means over the steps that were taken, and the largest loss of all.

    Args:
        columns: a number of each step `[n]`, by name.
        metrics: the names of the task's metrics among them.
    """
    taken = columns["skipped"] == 0
    means = {name: _mean(values[taken]) for name, values in columns.items()}
    return {
        **{name: means[name] for name in COLUMNS if name != "skipped"},
        "loss_max": float(columns["loss"].max()),
        "metrics": {name: means[name] for name in metrics},
    }


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None


def skipped_steps(columns: Mapping[str, Tensor], num_steps: int) -> list[int]:
    """The steps that were skipped, `num_steps` having been taken in all; the first step is 0."""
    skipped = columns["skipped"]
    rows: list[int] = skipped.nonzero().flatten().tolist()
    return [num_steps - len(skipped) + row for row in rows]
