"""Sums of rows over segments, and their adjoint."""

from __future__ import annotations

from torch import Tensor


def segment_sum(values: Tensor, index: Tensor, num_segments: int) -> Tensor:
    """Sum the rows of `values` that share an `index`: `[N, ...] -> [num_segments, ...]`."""
    shape = (num_segments, *values.shape[1:])
    return values.new_zeros(shape).index_add(0, index, values)


def segment_spread(rows: Tensor, index: Tensor) -> Tensor:
    """Give each element the row of its segment: `[num_segments, ...] -> [N, ...]`."""
    return rows.index_select(0, index)
