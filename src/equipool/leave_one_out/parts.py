"""The parts of sets that are left out, one at a time: single elements, or groups of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch import Tensor

from equipool.checks import INTEGERS, check_like
from equipool.layouts import gather_sets
from equipool.ops.segments import segment_sum
from equipool.sets import Sets, make_sets


@dataclass(frozen=True, eq=False)
class Parts:
    """The elements of a batch, those of a set side by side, and in it those of a part. The parts
    of a set share no element and have them all."""

    x: Tensor  # [M, C] elements
    positions: Tensor  # [M] where each element is in the given x
    index: Tensor  # [M] set of each element, ascending
    part: Tensor  # [M] part of each element, ascending
    counts: Tensor  # [B] elements of each set
    sizes: Tensor  # [P] elements of each part
    set_of: Tensor  # [P] set of each part, ascending
    group_of: Tensor | None  # [P] group of each part; None if every element is a part

    @property
    def num_parts(self) -> int:
        return self.sizes.shape[0]

    @property
    def sets(self) -> Sets:
        """The sets, with all of their elements."""
        return make_sets(self.index, self.counts, self.counts.shape[0], padded=False)

    @property
    def empties(self) -> Tensor:
        """`[P]` whether nothing is left of the set without the part."""
        return self.sizes == self.counts[self.set_of]

    def of_sets(self, chosen: Tensor) -> tuple[Tensor, Parts]:
        """The numbers `[Q]` of the parts of some sets, given by `[B]` truth values, and these parts
        alone. The other sets become empty."""
        (numbers,) = chosen[self.set_of].nonzero(as_tuple=True)
        elements = chosen[self.index]
        new = torch.cumsum(chosen[self.set_of], 0) - 1
        return numbers, Parts(
            self.x[elements], self.positions[elements], self.index[elements],
            new[self.part[elements]], torch.where(chosen, self.counts, 0), self.sizes[numbers],
            self.set_of[numbers], None if self.group_of is None else self.group_of[numbers],
        )  # fmt: skip

    def alone(self, start: int, stop: int) -> tuple[Tensor, Sets]:
        """The elements of the parts from `start` to `stop`, and sets that are these parts."""
        first, last = (int(self.sizes[:end].sum()) for end in (start, stop))
        part = self.part[first:last] - start
        return self.x[first:last], make_sets(
            part, self.sizes[start:stop], stop - start, padded=False
        )

    def remainders(self, start: int, stop: int) -> tuple[Tensor, Sets]:
        """For each part from `start` to `stop` the elements of its set without it, and the sets
        that they make."""
        set_of = self.set_of[start:stop]
        counts, num = self.counts[set_of], stop - start
        row = torch.arange(num, device=counts.device).repeat_interleave(counts)
        offset = torch.arange(row.shape[0], device=row.device) - (counts.cumsum(0) - counts)[row]
        first = (self.counts.cumsum(0) - self.counts)[set_of]
        element = first[row] + offset
        kept = self.part[element] != row + start
        sets = make_sets(row[kept], counts - self.sizes[start:stop], num, padded=False)
        return self.x[element[kept]], sets

    def blocks(self, costs: Tensor, limit: int) -> Iterator[tuple[int, int]]:
        """Runs of parts whose costs `[P]` add up to the limit at most, or single parts."""
        total = costs.cumsum(0).cpu()
        start = 0
        while start < self.num_parts:
            used = int(total[start - 1]) if start else 0
            stop = max(int(torch.searchsorted(total, used + limit, right=True)), start + 1)
            yield start, stop
            start = stop


def gather_parts(
    x: Tensor, index: Tensor | Sets | None, ptr: Tensor | None, mask: Tensor | None,
    dim_size: SupportsIndex | None, groups: Tensor | None,
) -> Parts:  # fmt: skip
    """Read a batch of sets in any layout. Without groups every element is a part."""
    flat = (x.values() if x.is_nested else x).detach().flatten(0, -2)
    # The layout's own code sorts the positions, so that they follow its order and lose padding.
    positions = torch.arange(flat.shape[0], dtype=torch.float64, device=x.device)
    if x.is_nested:
        offsets = x.offsets()  # type: ignore[attr-defined]
        ordered, sets = gather_sets(positions.unsqueeze(-1), ptr=offsets, dim_size=dim_size)
    else:
        ordered, sets = gather_sets(
            positions.view(*x.shape[:-1], 1), index, ptr=ptr, mask=mask, dim_size=dim_size
        )
    real = sets.index < sets.num_sets
    rows, set_index = ordered[real, 0].long(), sets.index[real]
    counts = segment_sum(torch.ones_like(set_index), set_index, sets.num_sets)
    if groups is None:
        part = torch.arange(rows.shape[0], device=x.device)
        ones = torch.ones_like(part)
        return Parts(flat[rows], rows, set_index, part, counts, ones, set_index, None)
    shape = flat.shape[:1] if x.is_nested else x.shape[:-1]
    check_like("groups", groups, x, shape, INTEGERS)
    pairs = torch.stack([set_index, groups.flatten()[rows].long()])
    (set_of, group_of), part = torch.unique(pairs, dim=1, return_inverse=True)
    part, order = torch.sort(part, stable=True)
    rows, set_index = rows[order], set_index[order]
    sizes = segment_sum(torch.ones_like(part), part, set_of.shape[0])
    return Parts(flat[rows], rows, set_index, part, counts, sizes, set_of, group_of)
