"""Ids of elements that come and go."""

from __future__ import annotations

import torch
from torch import Tensor

# An id is the number of an entry and, in its upper bits, how often that entry was used before.
ENTRY_BITS = 32


class Entries:
    """A table with an entry for each living element: the slot where it is stored, and its set.

    Entries are used again, ids are not: an id that was removed stays unknown. All of it is on the
    CPU, so that nothing waits for another device.
    """

    def __init__(self, uses: Tensor | None = None) -> None:
        self.uses = torch.zeros(0, dtype=torch.long) if uses is None else uses
        self.slot = torch.full_like(self.uses, -1)  # -1 for a free entry
        self.owner = torch.full_like(self.uses, -1)
        self._free = torch.zeros_like(self.uses)  # the first `_num_free` are the free entries
        self._num_free = 0
        self.num_entries = self.uses.shape[0]  # entries that were ever used

    @classmethod
    def restore(cls, uses: Tensor, ids: Tensor) -> Entries:
        """A table as it was, in which all but the entries of `ids` are free."""
        table = cls(uses)
        free = torch.ones(table.num_entries, dtype=torch.bool)
        free[entries_of(ids)] = False
        table._release(free.nonzero().squeeze(-1))
        return table

    def ids(self, entries: Tensor) -> Tensor:
        """The ids of the elements that have these entries."""
        return (self.uses[entries] << ENTRY_BITS) | entries

    def take(self, count: int) -> Tensor:
        """Entries for new elements: free ones first, then new ones in ascending order."""
        reused = min(count, self._num_free)
        self._num_free -= reused
        old = self._free[self._num_free : self._num_free + reused]
        first, self.num_entries = self.num_entries, self.num_entries + count - reused
        if self.num_entries > self.uses.shape[0]:
            more = max(self.num_entries, 2 * self.uses.shape[0]) - self.uses.shape[0]
            self.uses = extended(self.uses, more, 0)
            self.slot, self.owner = extended(self.slot, more, -1), extended(self.owner, more, -1)
            self._free = extended(self._free, more, 0)
        return torch.cat([old, torch.arange(first, self.num_entries)])

    def give_back(self, entries: Tensor) -> None:
        """Free the entries of removed elements, whose ids are never used again."""
        self.uses[entries] += 1
        self.slot[entries] = self.owner[entries] = -1
        self._release(entries)

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The entries of `ids [n]`, and which of the ids are those of living elements."""
        entries = entries_of(ids)
        known = (ids >= 0) & (entries < self.num_entries)
        entries = torch.where(known, entries, 0)
        if self.num_entries > 0:
            known = known & (self.slot[entries] >= 0) & (self.ids(entries) == ids)
        return entries, known

    def _release(self, entries: Tensor) -> None:
        self._free[self._num_free : self._num_free + entries.shape[0]] = entries
        self._num_free += entries.shape[0]


def entries_of(ids: Tensor) -> Tensor:
    """The entries that ids name, living or not."""
    return ids & ((1 << ENTRY_BITS) - 1)


def extended(rows: Tensor, more: int, value: float) -> Tensor:
    """Rows with `more` further ones after them, filled with a value."""
    return torch.cat([rows, rows.new_full((more, *rows.shape[1:]), value)])
