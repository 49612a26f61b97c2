"""Selection on a GPU: bisection over the order of the floats' bit patterns. A program has a set, a
rank and a block of channels; the first tile of a set stays in registers."""

# ruff: noqa: N803
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 32  # elements
LONG = 2048  # elements of a set on average: from here on narrow blocks, for more programs
NAN = tl.constexpr(2**31 - 1)  # its key, above that of infinity
LOWEST = tl.constexpr(-(2**31))


def positions(
    x: Tensor, index: Tensor, counts: Tensor, targets: Tensor, weight: Tensor | None
) -> Tensor:
    """`_positions`, without sorting."""
    rows, ranks, channels = targets.shape
    weight = None if weight is None else weight.contiguous()
    ptr = torch.searchsorted(index, torch.arange(rows + 1, device=x.device))
    found = torch.zeros(targets.shape, dtype=torch.long, device=x.device)
    widest = 16 if x.shape[0] > LONG * max(rows, 1) else 64
    block = min(widest, triton.next_power_of_2(max(channels, 1)))
    if found.numel():
        select[rows, triton.cdiv(channels, block), ranks](
            x.float().contiguous(), ptr, counts, targets.contiguous(), weight, found, ranks,
            channels, TILE=TILE, BLOCK=block,
        )  # fmt: skip
    return found


@triton.jit
def _keys(x, weight, rows, end, columns, channels):
    """Whole numbers in the order of the elements, their weights, and which elements are real."""
    mask = (rows < end)[:, None] & (columns < channels)[None, :]
    at = rows.to(tl.int64)[:, None] * channels + columns[None, :]
    v = tl.load(x + at, mask=mask, other=0.0)
    bits = v.to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, LOWEST - bits, bits)
    if weight is None:
        a = tl.where(mask, 1, 0)
    else:
        a = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    return tl.where(v == v, keys, NAN).to(tl.int64), a, mask


@triton.jit
def select(
    x, ptr, counts, targets, weight, out, num_ranks, channels,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, rank = tl.program_id(0), tl.program_id(2)
    begin, end = tl.load(ptr + row).to(tl.int32), tl.load(ptr + row + 1).to(tl.int32)
    end = tl.where(tl.load(counts + row) > 0, end, begin)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < channels
    at = (row.to(tl.int64) * num_ranks + rank) * channels + columns
    target = tl.load(targets + at, mask=inside, other=0)
    first = begin + tl.arange(0, TILE)
    keys, a, mask = _keys(x, weight, first, end, columns, channels)
    low = tl.min(tl.where(mask, keys, NAN), axis=0)
    high = tl.max(tl.where(mask, keys, LOWEST), axis=0)
    for start in range(begin + TILE, end, TILE):
        more, _, real = _keys(x, weight, start + tl.arange(0, TILE), end, columns, channels)
        low = tl.minimum(low, tl.min(tl.where(real, more, NAN), axis=0))
        high = tl.maximum(high, tl.max(tl.where(real, more, LOWEST), axis=0))
    low = tl.where(high == NAN, high, low)  # NaN propagates
    moving = tl.max(tl.where(inside & (low < high), 1, 0), axis=0)
    while moving > 0:
        middle = (low + high) >> 1
        reached = tl.sum(tl.where(keys <= middle[None, :], a, 0), axis=0)
        for start in range(begin + TILE, end, TILE):
            more, b, _ = _keys(x, weight, start + tl.arange(0, TILE), end, columns, channels)
            reached += tl.sum(tl.where(more <= middle[None, :], b, 0), axis=0)
        enough = reached >= target
        high = tl.where((low < high) & enough, middle, high)
        low = tl.where((low < high) & ~enough, middle + 1, low)
        moving = tl.max(tl.where(inside & (low < high), 1, 0), axis=0)
    place = tl.full([BLOCK], NAN, tl.int64)
    for start in range(begin, end, TILE):
        rows = start + tl.arange(0, TILE)
        more, _, real = _keys(x, weight, rows, end, columns, channels)
        hit = real & (more == low[None, :])
        place = tl.minimum(place, tl.min(tl.where(hit, rows.to(tl.int64)[:, None], NAN), axis=0))
    tl.store(out + at, place, mask=inside & (begin < end))
