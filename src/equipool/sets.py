"""One ragged batch of sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipool.checks import values_are_at_hand
from equipool.ops import segments
from equipool.ops.execution import is_batched
from equipool.private_torch import is_exporting

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, eq=False)
class Sets:
    """Which element belongs to which set, elements of a set side by side.

    A potential's `over` and a start's `forward` receive it: `spread` gives each element the row of
    its set, and `sum` adds up the elements of each set.

    There may be one row more than there are sets: the padding row, for elements that belong to no
    set. It counts as empty, so it has no energy, never moves and receives no gradient.
    """

    index: Tensor  # [N] row of each element, ascending
    counts: Tensor  # [num_rows] elements of each row; 0 for the padding row
    num_sets: int
    padded: bool  # True when a padding row follows the sets
    blocks: segments.Blocks | None
    valid: Tensor | None = None  # [num_rows, 1] whether all elements are finite; None if all are
    group: ProcessGroup | None = None  # the processes that have elements; None if this one has all

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
            return segments.segment_spread(rows, self.index)
        return segments.block_spread(rows, self.blocks)

    def sum(self, values: Tensor) -> Tensor:
        """Sum the elements of each set: `[N, ...] -> [num_rows, ...]`."""
        if self.blocks is None:
            return segments.segment_sum(values, self.index, self.num_rows)
        return segments.block_sum(values, self.blocks, self.num_rows)

    def real(self, rows: Tensor) -> Tensor:
        """Drop the padding row: `[num_rows, ...] -> [num_sets, ...]`."""
        return rows[: self.num_sets] if self.padded else rows

    def mark(self, rows: Tensor) -> Tensor:
        """Fill the rows `[num_rows, ...]` of invalid sets with NaN, which also blocks their
        gradient."""
        if self.valid is None:
            return rows
        return torch.where(self.valid.view(-1, *(1 for _ in rows.shape[1:])), rows, torch.nan)

    def restrict(self, rows: Tensor) -> tuple[Tensor, Sets]:
        """Some rows alone, given by ascending numbers: the numbers of their elements, and the sets
        of those."""
        number = self.index.new_full((self.num_rows,), -1)
        number[rows] = torch.arange(rows.shape[0], device=rows.device, dtype=number.dtype)
        of_elements = number[self.index]
        (elements,) = (of_elements >= 0).nonzero(as_tuple=True)
        index, counts = of_elements[elements], self.counts[rows]
        return elements, make_sets(index, counts, rows.shape[0], padded=False)


def make_sets(index: Tensor, counts: Tensor, num_sets: int, *, padded: bool) -> Sets:
    """Sets from each element's row, ascending, and the rows' counts."""
    index = index.contiguous()  # kernels read its memory; it may be an expanded number
    wanted = segments.blocks_are_wanted(index.shape[0])
    blocks = segments.make_blocks(index, counts.shape[0]) if wanted else None
    return Sets(index, counts, num_sets, padded, blocks)


def empty_invalid_sets(x: Tensor, sets: Sets) -> tuple[Tensor, Sets]:
    """Empty the sets that have an element which is not finite; they are not `valid`.

    Left as they are, they would reach the other sets in the backward pass even if the loss leaves
    them out, as zero times NaN is NaN. An empty set has no energy and passes no gradient. An
    exported program, which has no backward pass, leaves all as they were.
    """
    if is_exporting():
        return x, sets
    sizes = torch.linalg.vector_norm(x.detach(), torch.inf, dim=-1)
    valid = sets.sum(0 * sizes) == 0  # 0 times what is not finite is NaN
    if sets.valid is not None:
        valid = valid & sets.valid.squeeze(-1)
    if values_are_at_hand(x) and not is_batched(x) and bool(valid.all()):
        return x, sets
    # The elements stay, as zeros, and count for nothing: other sets' rounding stays the same.
    x = torch.where((sizes < torch.inf).unsqueeze(-1), x, 0)
    counts = torch.where(valid, sets.counts, 0)
    return x, replace(sets, counts=counts, valid=valid.unsqueeze(-1))
