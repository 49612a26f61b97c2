"""Sizes that graphs are recorded for, and how much of them may be padding."""

from __future__ import annotations

from typing import NamedTuple

# Padding that a batch may get, as a fraction of its size: that of a graph recorded for it, and of
# one that serves because there are enough graphs.
LEAST_WASTE, MOST_WASTE = 1 / 64, 1 / 2
SMALL = 64  # elements that may always be padding: a small batch costs the same with them
LARGE = 32_768  # from so many elements on, the work takes longer than launching it
WASTE_IF_LARGE = 1 / 16


class Capacity(NamedTuple):
    """The largest batch that a graph takes."""

    elements: int
    sets: int

    def holds(self, need: Capacity, waste: float) -> bool:
        """Whether a batch fits with no more padding than `waste` allows."""
        pairs = zip(self, need, strict=True)
        return all(size <= own <= size + _padding(size, waste) for own, size in pairs)


def capacity_for(need: Capacity) -> Capacity:
    """The capacity to record for a batch: rounded up, so that batches of similar size share it.

    Example:
        >>> capacity_for(Capacity(6600, 250))
        Capacity(elements=6656, sets=256)
    """
    return Capacity(*(_round_up(size, _padding(size, LEAST_WASTE)) for size in need))


def _padding(size: int, waste: float) -> int:
    if size > LARGE:
        waste = min(waste, WASTE_IF_LARGE)
    return max(SMALL, int(waste * size))


def _round_up(size: int, step: int) -> int:
    step = 1 << (step.bit_length() - 1)
    return -(-size // step) * step
