"""Triton kernels of `combination.py`."""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

from equipool.ops.launching import BLOCK, grid, total

__all__ = ["BLOCK", "backward", "forward", "grid", "total"]


@triton.jit
def forward(
    gradient, weight, y, y_weight, factor, out, size, width: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    scale = tl.load(factor).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for start in range(first, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < size
        row = at // width
        value = tl.load(weight + row, mask=mask) * tl.load(gradient + at, mask=mask)
        value += tl.load(y_weight + row, mask=mask) * scale * tl.load(y + at, mask=mask)
        tl.store(out + at, value, mask=mask)


@triton.jit
def backward(
    by_out, weight, y, y_weight, factor, by_gradient, by_y, by_factor, size,
    width: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.load(factor).to(tl.float32)
    found = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for start in range(first, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < size
        row = at // width
        by = tl.load(by_out + at, mask=mask, other=0.0)
        by_weighted = by * tl.load(y_weight + row, mask=mask, other=0.0)
        tl.store(by_gradient + at, by * tl.load(weight + row, mask=mask, other=0.0), mask=mask)
        tl.store(by_y + at, by_weighted * scale, mask=mask)
        found += by_weighted * tl.load(y + at, mask=mask, other=0.0)
    tl.store(by_factor + tl.program_id(0), tl.sum(found, axis=0))
