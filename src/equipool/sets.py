"""One ragged batch of sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.ops.segments import segment_spread, segment_sum

# A float32 sum of many terms, one after the other, loses digits with their number. Beyond
# BLOCKED_FROM elements the sum of a set is taken over blocks first, then over the blocks' sums.
BLOCK = 256
BLOCKED_FROM = 16_384


class Blocks(NamedTuple):
    """A finer partition: every set is cut into blocks of at most `BLOCK` elements."""

    of_element: Tensor  # [N] block of each element
    set_of: Tensor  # [num_blocks] set of each block


@dataclass(frozen=True, eq=False)
class Sets:
    """Which element belongs to which set, elements of a set side by side.

    There may be one row more than there are sets: the padding row, which owns the elements that
    belong to no set. It counts as empty, so it has no energy, never moves and receives no gradient.
    """

    index: Tensor  # [N] row of each element, ascending
    counts: Tensor  # [num_rows] elements of each row; 0 for the padding row
    num_sets: int
    padded: bool  # True when a padding row follows the sets
    blocks: Blocks | None

    @property
    def num_rows(self) -> int:
        return self.num_sets + self.padded

    @property
    def num_elements(self) -> int:
        return self.index.shape[0]

    @property
    def ptr(self) -> Tensor:
        """Offsets `[num_rows + 1]` of the rows' elements."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0))

    def spread(self, rows: Tensor) -> Tensor:
        """Give each element the row of its set: `[num_rows, ...] -> [N, ...]`."""
        if self.blocks is None:
            return segment_spread(rows, self.index)
        return segment_spread(segment_spread(rows, self.blocks.set_of), self.blocks.of_element)

    def sum(self, values: Tensor) -> Tensor:
        """Sum the elements of each set: `[N, ...] -> [num_rows, ...]`."""
        if self.blocks is None:
            return segment_sum(values, self.index, self.num_rows)
        partial = segment_sum(values, self.blocks.of_element, self.blocks.set_of.shape[0])
        return segment_sum(partial, self.blocks.set_of, self.num_rows)

    def real(self, rows: Tensor) -> Tensor:
        """Drop the padding row: `[num_rows, ...] -> [num_sets, ...]`."""
        return rows[: self.num_sets] if self.padded else rows


def make_sets(index: Tensor, counts: Tensor, num_sets: int, *, padded: bool) -> Sets:
    """Sets from each element's row, ascending, and the rows' counts."""
    exporting = torch.compiler.is_exporting()
    blocked = not exporting and index.shape[0] >= BLOCKED_FROM
    return Sets(index, counts, num_sets, padded, _blocks(index, counts) if blocked else None)


def _blocks(index: Tensor, counts: Tensor) -> Blocks:
    """Cut every set into blocks. Their number is bounded without looking at the counts, so that
    nothing waits for the device; blocks beyond those in use stay empty and go to the last set."""
    num_rows, num_elements = counts.shape[0], index.shape[0]
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    first_block = torch.nn.functional.pad(((counts + BLOCK - 1) // BLOCK).cumsum(0), (1, 0))
    position = torch.arange(num_elements, device=index.device) - starts[index]
    num_blocks = num_elements // BLOCK + num_rows + 1
    block = torch.arange(num_blocks, device=index.device)
    set_of = torch.searchsorted(first_block[1:], block, right=True).clamp(max=num_rows - 1)
    return Blocks((first_block[index] + position // BLOCK).clamp(max=num_blocks - 1), set_of)
