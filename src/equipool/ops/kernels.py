"""Triton kernels of `combination.py`, `derivatives.py` and `ranges.py`, and the launch of kernels
that go over all numbers of a tensor."""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
ALONE = 8 * BLOCK  # so few numbers are left to one program: its sums need no further kernel


def grid(tensor: Tensor) -> tuple[int]:
    """The number of programs, which share the blocks of a tensor."""
    return (1 if tensor.numel() <= ALONE else -(-tensor.numel() // BLOCK),)


def total(of_programs: Tensor) -> Tensor:
    """The sum over the last dimension, of one number for each program."""
    return of_programs[..., 0] if of_programs.shape[-1] == 1 else of_programs.sum(-1)


@triton.jit
def combine(
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
def combine_backward(
    by_out, weight, y, y_weight, factor, by_gradient, by_y, by_factor, size,
    width: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Where the derivative is zero, y does not count: it may not be finite."""
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
        found += by_weighted * tl.load(y + at, mask=mask & (by_weighted != 0), other=0.0)
    tl.store(by_factor + tl.program_id(0), tl.sum(found, axis=0))


@triton.jit
def squared_norms(rows, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    found = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        value = tl.load(rows + row * width + columns, mask=columns < width, other=0.0)
        found += value * value
    tl.store(out + row, tl.sum(found, axis=0))


@triton.jit
def squared_norms_backward(by_out, rows, by_rows, width, BLOCK: tl.constexpr):
    """Where the derivative is zero, the row does not count: it may not be finite."""
    row = tl.program_id(0).to(tl.int64)
    by = tl.load(by_out + row)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < width
        value = tl.load(rows + row * width + columns, mask=mask, other=0.0)
        tl.store(by_rows + row * width + columns, tl.where(by == 0, 0.0, 2 * by * value), mask=mask)


# Ranges are computed in float64, which costs nothing with one number: in float32, logarithms near 1
# and exponentials near 0 would need care.


@triton.jit
def _softplus(z):
    small = tl.exp(-tl.abs(z))
    # The logarithm of 1 + small, which has lost small's last digits where it is tiny.
    log = tl.where(small < 1e-6, small - small * small / 2, tl.log(1 + small))
    return tl.maximum(z, 0.0) + log


@triton.jit
def _center(v0):
    """`c` where `softplus(c) = v0`."""
    share = tl.where(v0 < 1e-6, v0 - v0 * v0 / 2, 1 - tl.exp(-v0))
    return v0 + tl.log(share)


@triton.jit
def bring_into_range(origin, raw, out, FRACTION: tl.constexpr):
    v0, r = tl.load(origin).to(tl.float64), tl.load(raw).to(tl.float64)
    if FRACTION:
        value = v0 / (v0 + (1 - v0) * tl.exp(-r))
    else:
        c = _center(v0)
        value = v0 * (_softplus(r + c) / _softplus(c))
    tl.store(out, value.to(out.dtype.element_ty))


@triton.jit
def bring_into_range_backward(by_out, origin, raw, by_raw, FRACTION: tl.constexpr):
    v0, r = tl.load(origin).to(tl.float64), tl.load(raw).to(tl.float64)
    if FRACTION:
        rest = (1 - v0) * tl.exp(-r)
        slope = v0 / (v0 + rest) / (1 + v0 / rest)
    else:
        c = _center(v0)
        slope = v0 / (1 + tl.exp(-r - c)) / _softplus(c)
    by = tl.load(by_out).to(tl.float64)
    tl.store(by_raw, (by * slope).to(by_raw.dtype.element_ty))
