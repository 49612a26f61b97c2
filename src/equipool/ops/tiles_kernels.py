"""The Triton kernel of `tiles.py`."""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _begin(index, row, num_elements):
    """Elements in the rows before this one: where it begins."""
    low = row * 0
    high = low + num_elements
    while low < high:
        middle = (low + high) // 2
        before = tl.load(index + middle) < row
        low, high = tl.where(before, middle + 1, low), tl.where(before, high, middle)
    return low


@triton.jit(do_not_specialize=["num_elements", "num_rows", "size"])
def cut(index, start, end, first, num_elements, num_rows, size, BLOCK: tl.constexpr):
    """The tiles of one row; one program more than there are rows says where the last one's end."""
    row = tl.program_id(0).to(tl.int64)
    begin = _begin(index, row, num_elements)
    own = begin // size + row
    tl.store(first + row, own)
    if row < num_rows:
        stop = _begin(index, row + 1, num_elements)
        after = stop // size + row + 1
        for block in range(own, after, BLOCK):
            tile = block + tl.arange(0, BLOCK)
            here = begin + (tile - own) * size
            used = here < stop
            tl.store(start + tile, tl.where(used, here, 0), mask=tile < after)
            until = tl.minimum(here + size, stop)
            tl.store(end + tile, tl.where(used, until, 0), mask=tile < after)
