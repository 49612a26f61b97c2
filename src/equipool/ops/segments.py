"""Sums of rows over segments, and their adjoint."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.ops.execution import is_exporting

# A float32 sum of many terms, one after the other, loses digits with their number. Beyond
# BLOCKED_FROM elements a sum is taken over blocks first, then over the blocks' sums.
BLOCK = 256
BLOCKED_FROM = 16_384


def segment_sum(values: Tensor, index: Tensor, num_segments: int) -> Tensor:
    """Sum the rows of `values` that share an `index`: `[N, ...] -> [num_segments, ...]`."""
    shape = (num_segments, *values.shape[1:])
    return values.new_zeros(shape).index_add(0, index, values)


def segment_spread(rows: Tensor, index: Tensor) -> Tensor:
    """Give each element the row of its segment: `[num_segments, ...] -> [N, ...]`."""
    return rows.index_select(0, index)


class Blocks(NamedTuple):
    """A finer partition: every segment is cut into blocks of at most `BLOCK` elements."""

    of_element: Tensor  # [N] block of each element
    segment_of: Tensor  # [num_blocks] segment of each block


def blocks_are_wanted(num_elements: int) -> bool:
    """Whether there are so many that their sum needs blocks. An exported program goes without:
    it serves any number of elements."""
    return not is_exporting() and num_elements >= BLOCKED_FROM


def make_blocks(index: Tensor, num_segments: int) -> Blocks:
    """Cut every segment, given by `index [N]` in ascending order, into blocks. Their number is
    bounded without looking at the index, so that nothing waits for the device; blocks beyond those
    in use stay empty and go to the last segment."""
    num_elements, device = index.shape[0], index.device
    starts = torch.searchsorted(index, torch.arange(num_segments + 1, device=device))
    first = torch.nn.functional.pad(((starts.diff() + BLOCK - 1) // BLOCK).cumsum(0), (1, 0))
    position = torch.arange(num_elements, device=device) - starts[index]
    block = torch.arange(num_elements // BLOCK + num_segments + 1, device=device)
    segment_of = torch.searchsorted(first[1:], block, right=True).clamp(max=num_segments - 1)
    return Blocks(first[index] + position // BLOCK, segment_of)


def block_sum(values: Tensor, blocks: Blocks, num_segments: int) -> Tensor:
    """`segment_sum` by way of blocks."""
    partial = segment_sum(values, blocks.of_element, blocks.segment_of.shape[0])
    return segment_sum(partial, blocks.segment_of, num_segments)


def block_spread(rows: Tensor, blocks: Blocks) -> Tensor:
    """`segment_spread` by way of blocks: the adjoint is then a `block_sum`."""
    return segment_spread(segment_spread(rows, blocks.segment_of), blocks.of_element)
