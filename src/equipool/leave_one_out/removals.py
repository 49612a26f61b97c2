"""What is left out of sets, one at a time: single elements, or groups of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex

import torch
from torch import Tensor

from equipool.ops.segments import segment_sum
from equipool.sets import INTEGERS, Sets, check_like, gather_positions, make_sets


@dataclass(frozen=True, eq=False)
class Removals:
    """The elements of a batch, those of a set side by side, and in it those of a removal. The
    removals of a set share no element and have them all."""

    x: Tensor  # [M, C] elements
    positions: Tensor  # [M] where each element is in the given x
    sets: Sets  # of the elements
    removal: Tensor  # [M] removal of each element, ascending
    sizes: Tensor  # [P] elements of each removal
    set_of: Tensor  # [P] set of each removal, ascending
    group_of: Tensor | None  # [P] group of each removal; None if each is an element

    @property
    def left_weight(self) -> Tensor:
        """`[P]` how much they weigh, or their number if they have no weights."""
        if self.sets.weight is None:
            return self.left
        weight, num = self.sets.weight.double(), self.sets.num_sets
        whole = segment_sum(weight, self.sets.index, num)[self.set_of]
        return whole - segment_sum(weight, self.removal, len(self.set_of))

    @property
    def left(self) -> Tensor:
        """`[P]` how many elements are left of the set."""
        return self.sets.counts[self.set_of] - self.sizes

    @cached_property
    def ends(self) -> Tensor:
        """`[P + 1]` where the elements of each removal begin and end, on the CPU."""
        return torch.nn.functional.pad(self.sizes.cumsum(0).cpu(), (1, 0))

    def alone(self, start: int, stop: int) -> tuple[Tensor, Sets]:
        """The elements of the removals from `start` to `stop`, and sets that are these removals."""
        elements = slice(int(self.ends[start]), int(self.ends[stop]))
        removal, sizes = self.removal[elements] - start, self.sizes[start:stop]
        sets = make_sets(removal, sizes, stop - start, padded=False)
        return self.x[elements], sets.weighted(self.weights_of(elements))

    def remainders(self, start: int, stop: int) -> tuple[Tensor, Sets]:
        """For each removal from `start` to `stop` the elements of its set without it, and the sets
        that they make."""
        set_of, num = self.set_of[start:stop], stop - start
        counts = self.sets.counts[set_of]
        row = torch.arange(num, device=counts.device).repeat_interleave(counts)
        offset = torch.arange(row.shape[0], device=row.device) - (counts.cumsum(0) - counts)[row]
        element = self.sets.ptr[set_of][row] + offset
        kept = self.removal[element] != row + start
        sets = make_sets(row[kept], self.left[start:stop], num, padded=False)
        return self.x[element[kept]], sets.weighted(self.weights_of(element[kept]))

    def weights_of(self, elements: Tensor | slice) -> Tensor | None:
        return None if self.sets.weight is None else self.sets.weight[elements]

    def blocks(self, costs: Tensor, limit: int) -> Iterator[tuple[int, int]]:
        """Runs of removals whose costs `[P]` add up to the limit at most, or single removals."""
        total = costs.cumsum(0).cpu()
        start = 0
        while start < len(total):
            used = int(total[start - 1]) if start else 0
            stop = max(int(torch.searchsorted(total, used + limit, right=True)), start + 1)
            yield start, stop
            start = stop


def gather_removals(
    x: Tensor, index: Tensor | Sets | None, ptr: Tensor | None, mask: Tensor | None,
    dim_size: SupportsIndex | None, weight: Tensor | None, groups: Tensor | None,
) -> Removals:  # fmt: skip
    """Read a batch of sets in any layout. Without groups each element is a removal."""
    positions, sets = gather_positions(
        x, index, ptr=ptr, mask=mask, dim_size=dim_size, weight=weight
    )
    flat = x.values() if x.is_nested else x
    elements = flat.detach().flatten(0, -2)[positions]
    if groups is None:
        removal = torch.arange(len(positions), device=x.device)
        ones = torch.ones_like(removal)
        return Removals(elements, positions, sets, removal, ones, sets.index, None)
    check_like("groups", groups, x, flat.shape[:-1], INTEGERS)
    pairs = torch.stack([sets.index, groups.flatten()[positions].long()])
    (set_of, group_of), removal = torch.unique(pairs, dim=1, return_inverse=True)
    removal, order = torch.sort(removal, stable=True)
    sizes = segment_sum(torch.ones_like(removal), removal, len(set_of))
    sets = sets.weighted(None if sets.weight is None else sets.weight[order])
    return Removals(elements[order], positions[order], sets, removal, sizes, set_of, group_of)
