"""Elements of many sets that come and go, in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.streaming.entries import Entries, entries_of

LEAST_ROOM = 4  # slots of the smallest range
SPARSE = 8  # the store shrinks when it has this many slots per element


class Store:
    """The elements of each set side by side in `x`, and their ids.

    A set owns a range of slots and fills it from its beginning. A removed element is overwritten,
    by the last one of its set or by zero. A set that outgrows its range moves to one of 1.5 times
    the size at the end of the store, and its old range is overwritten with zeros; when the end is
    reached, all sets move to a new tensor, and the old one is overwritten. So an edit costs the
    elements that it names, on average over many edits, and what was removed is nowhere in the
    store.

    Everything but `x` is on the CPU, so that edits do not wait for another device.

    Args:
        num_sets: the number of sets.
        like: a tensor `[..., C]` of the elements' width, dtype and device.
        entries: the table of ids. Default: an empty one.
    """

    def __init__(self, num_sets: int, like: Tensor, entries: Entries | None = None) -> None:
        self.x = like.new_zeros(0, like.shape[-1])
        self.counts = torch.zeros(num_sets, dtype=torch.long)
        self.entries = Entries() if entries is None else entries
        self._entry = torch.zeros(0, dtype=torch.long)  # [capacity] of the element in each slot
        self._begins = torch.zeros(num_sets, dtype=torch.long)
        self._room = torch.zeros(num_sets, dtype=torch.long)
        self._used = 0  # slots that belong, or belonged, to a set

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        """Add `x [n, C]` to the sets `index [n]`; return the elements' ids."""
        entries = self.entries.take(x.shape[0])
        self.put(x, index, entries)
        return self.entries.ids(entries)

    def put(self, x: Tensor, index: Tensor, entries: Tensor) -> None:
        """Add elements under entries that are taken already."""
        owners, order = torch.sort(index, stable=True)
        sets, added = torch.unique_consecutive(owners, return_counts=True)
        self._make_room(sets, self.counts[sets] + added)
        slots = torch.empty_like(order)
        slots[order] = ranges(self._begins[sets] + self.counts[sets], added)
        self.counts[sets] += added
        self.x[slots.to(self.x.device)] = x
        self._entry[slots] = entries
        self.entries.slot[entries], self.entries.owner[entries] = slots, index

    def replace(self, entries: Tensor, x: Tensor) -> None:
        """Overwrite elements with others."""
        self.x[self.entries.slot[entries].to(self.x.device)] = x

    def remove(self, entries: Tensor) -> None:
        """Remove elements, each named once."""
        owners, order = torch.sort(self.entries.owner[entries])
        slots = self.entries.slot[entries][order]
        sets, removed = torch.unique_consecutive(owners, return_counts=True)
        self.entries.give_back(entries)
        self._entry[slots] = -1
        self.counts[sets] -= removed
        ends = self._begins[sets] + self.counts[sets]
        # Elements beyond the new end of their set fill the holes before it.
        beyond = ranges(ends, removed)
        movers = beyond[self._entry[beyond] >= 0]
        holes = slots[slots < ends.repeat_interleave(removed)]
        self._move(movers, holes)
        self.x[beyond.to(self.x.device)] = 0
        if self.x.shape[0] > SPARSE * (int(self.counts.sum()) + LEAST_ROOM):
            self._rebuild(self.counts)

    def elements(self, sets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The elements `x [N, C]` of some sets, given by ascending numbers, in set order; which of
        these sets each belongs to, `[N]`; and the ids `[N]`, on the CPU."""
        counts = self.counts[sets]
        slots = ranges(self._begins[sets], counts)
        index = torch.arange(sets.shape[0]).repeat_interleave(counts)
        ids = self.entries.ids(self._entry[slots])
        device = self.x.device
        return self.x.index_select(0, slots.to(device)), index.to(device), ids

    def _make_room(self, sets: Tensor, needed: Tensor) -> None:
        """Give the sets ranges for so many elements."""
        short = needed > self._room[sets]
        if not bool(short.any()):
            return
        room = range_sizes(needed[short])
        if self._used + int(room.sum()) > self.x.shape[0]:
            self._rebuild(self.counts.index_copy(0, sets, needed))
            return
        sets = sets[short]
        counts, begins = self.counts[sets], self._used + room.cumsum(0) - room
        self._move(ranges(self._begins[sets], counts), ranges(begins, counts))
        self._begins[sets], self._room[sets] = begins, room
        self._used += int(room.sum())

    def _rebuild(self, counts: Tensor) -> None:
        """Move all sets to a new tensor, with room for so many elements each."""
        old, (x, _, ids) = self.x, self.elements(torch.arange(self.counts.shape[0]))
        self._room = range_sizes(counts)
        self._begins = self._room.cumsum(0) - self._room
        self._used = int(self._room.sum())
        capacity = self._used + self._used // 2
        slots = ranges(self._begins, self.counts)
        entries = self._entry.new_full((capacity,), -1)
        entries[slots] = entries_of(ids)
        self._entry = entries
        self.entries.slot[entries[slots]] = slots
        self.x = old.new_zeros(capacity, old.shape[1])
        self.x[slots.to(old.device)] = x
        old.zero_()
        x.zero_()

    def _move(self, before: Tensor, after: Tensor) -> None:
        """Move elements to other slots, and overwrite where they were with zeros."""
        device = self.x.device
        self.x[after.to(device)] = self.x[before.to(device)]
        self.x[before.to(device)] = 0
        entries = self._entry[before]
        self._entry[after], self._entry[before] = entries, -1
        self.entries.slot[entries] = after


def range_sizes(counts: Tensor) -> Tensor:
    """The sizes of ranges for so many elements: half as many again; none for an empty set."""
    return torch.where(counts > 0, (counts + counts // 2).clamp(min=LEAST_ROOM), 0)


def ranges(begins: Tensor, lengths: Tensor) -> Tensor:
    """`begin, begin + 1, ...`, as many as each length says, one range after the other.

    Example:
        >>> ranges(torch.tensor([5, 0]), torch.tensor([2, 3]))
        tensor([5, 6, 0, 1, 2])
    """
    ends = lengths.cumsum(0)
    offsets = (begins - ends + lengths).repeat_interleave(lengths)
    return torch.arange(offsets.shape[0]) + offsets
