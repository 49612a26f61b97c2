"""Selection without sorting: bisection over integers in the order of the floats, a counting pass
over a set that stays in cache for each of at most 32 bits. One block of channels at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipool.ops.fused import BLOCK, compiled, ranges_of, run

INT = np.int32
LOW, HIGH, LEFT, RIGHT, PIVOT, ABOVE, FOUND, ROWS = range(0, 8 * BLOCK, BLOCK)  # of the state
TOTAL, UNDER, UPTO, TARGET, WEIGHTS = range(0, 5 * BLOCK, BLOCK)  # of the sums
ZERO, LOWEST, HIGHEST, INFINITY = INT(0), INT(-(2**31)), INT(2**31 - 1), INT(0x7F800000)


@compiled
def _load(keys, ws, state, bits, weight, begin, count, first, width):
    """Copy a set's block of channels as integers in the order of the floats; NaN is the largest."""
    for k in range(BLOCK):
        state[LOW + k], state[HIGH + k] = HIGHEST, LOWEST
    for i in range(count):
        for k in range(width):
            keys[i * BLOCK + k] = bits[begin + i, first + k]
            if weight is not None:
                ws[i * BLOCK + k] = weight[begin + i, first + k]
        for k in range(BLOCK):
            bit, least, most = keys[i * BLOCK + k], state[LOW + k], state[HIGH + k]
            size = bit & HIGHEST
            key = bit if bit >= ZERO else ZERO - size
            key = HIGHEST if size > INFINITY else key
            keys[i * BLOCK + k] = key
            state[LOW + k] = key if key < least else least
            state[HIGH + k] = key if key > most else most


@compiled
def _count(keys, ws, state, sums, count, weight):
    """The weight of the elements up to each pivot, and the smallest element above it."""
    for k in range(BLOCK):
        sums[TOTAL + k], state[ABOVE + k] = ZERO, HIGHEST
    for i in range(count):
        for k in range(BLOCK):
            key, least, pivot = keys[i * BLOCK + k], state[ABOVE + k], state[PIVOT + k]
            if weight is None:
                sums[TOTAL + k] += INT(key <= pivot)
            else:
                sums[TOTAL + k] += ws[i * BLOCK + k] if key <= pivot else ws[i * BLOCK + k] * ZERO
            state[ABOVE + k] = key if (key > pivot) & (key < least) else least


@compiled
def _choose(state, sums, weight):
    """Halve the brackets; how many of them hold more than one element."""
    going = 0
    for k in range(BLOCK):
        left, right, pivot = state[LEFT + k], state[RIGHT + k], state[PIVOT + k]
        total = sums[TOTAL + k]
        if total >= sums[TARGET + k] or left >= right:  # the target may exceed all, by rounding
            right, sums[UPTO + k] = pivot, total
        else:
            left, sums[UNDER + k] = pivot + INT(1), total
        state[LEFT + k], state[RIGHT + k] = left, right
        several = left < right
        if weight is None:
            several = several & (sums[UPTO + k] - sums[UNDER + k] > INT(1))
        going += INT(several)
    return going


@compiled
def _find(keys, state, count):
    """The first element in each bracket."""
    for i in range(count - 1, -1, -1):
        for k in range(BLOCK):
            key, at = keys[i * BLOCK + k], state[FOUND + k]
            inside = (key >= state[LEFT + k]) & (key <= state[RIGHT + k])
            state[FOUND + k] = INT(i) if inside else at


@compiled
def _positions(
    bits, begins, counts, targets, weight, positions, number, first_set, last_set, first, last
):  # fmt: skip
    longest = counts[first_set:last_set].max() * BLOCK
    keys, ws = np.zeros(longest, INT), np.zeros(longest if weight is not None else 0, np.float32)
    state, sums = np.zeros(ROWS, INT), np.zeros(WEIGHTS, targets.dtype)
    for b in range(first_set, last_set):
        for c in range(first, last, BLOCK):
            width, count = min(BLOCK, last - c), counts[b]
            if count == 0:
                continue
            _load(keys, ws, state, bits, weight, begins[b], count, c, width)
            for q in range(targets.shape[1]):
                if q > 0:  # from the last one on: often the same element or the next
                    for k in range(BLOCK):
                        state[PIVOT + k] = keys[state[FOUND + k] * BLOCK + k]
                    _count(keys, ws, state, sums, count, weight)
                going = 0
                for k in range(BLOCK):
                    last_wanted = sums[TARGET + k]
                    sums[TARGET + k] = targets[b, q, c + min(k, width - 1)]
                    state[LEFT + k] = HIGHEST if state[HIGH + k] == HIGHEST else state[LOW + k]
                    state[RIGHT + k], sums[UNDER + k], sums[UPTO + k] = state[HIGH + k], ZERO, count
                    if q > 0 and state[HIGH + k] < HIGHEST and sums[TARGET + k] >= last_wanted:
                        same = sums[TOTAL + k] >= sums[TARGET + k]
                        after = min(state[ABOVE + k], state[HIGH + k])
                        state[LEFT + k] = state[PIVOT + k] if same else after
                        following = weight is None and sums[TOTAL + k] + INT(1) >= sums[TARGET + k]
                        if same or following:
                            state[RIGHT + k] = state[LEFT + k]
                        sums[UNDER + k] = ZERO if same else sums[TOTAL + k]
                    going += INT(state[LEFT + k] < state[RIGHT + k])
                while going > 0:
                    for k in range(BLOCK):
                        state[PIVOT + k] = (state[LEFT + k] & state[RIGHT + k]) + (
                            (state[LEFT + k] ^ state[RIGHT + k]) >> INT(1)
                        )
                    _count(keys, ws, state, sums, count, weight)
                    going = _choose(state, sums, weight)
                _find(keys, state, count)
                for k in range(width):
                    positions[b, q, c + k] = begins[b] + state[FOUND + k]


def positions(
    x: Tensor, index: Tensor, counts: Tensor, targets: Tensor, weight: Tensor | None
) -> Tensor:
    """`selection.naive`, in loops."""
    bits = x.float().contiguous().view(torch.int32)
    begins = torch.searchsorted(index, torch.arange(counts.shape[0]))
    found = torch.zeros(targets.shape, dtype=torch.long)
    if weight is not None:
        weight, targets = weight.float().contiguous(), targets.float()
    else:
        targets = targets.int()
    given = bits, begins, counts, targets.contiguous(), weight, found
    run(_positions, ranges_of(counts), x.shape[1], *given)
    return found
