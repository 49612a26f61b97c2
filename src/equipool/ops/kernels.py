"""Triton kernels of the operations on rows, and the launch of those that go over all numbers of a
tensor. Small batches are bound by the number of kernels launched."""

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


class Shape:
    """How a momentum step divides `[num_rows, K]`: the row length that a program sees, padded to
    `block` columns, the rows that it takes at a time, and the number of programs. Without limits a
    step does not depend on where a row ends, and one long row is cut into blocks."""

    def __init__(self, tensor: Tensor, *, by_rows: bool) -> None:
        self.width: int = tensor.shape[-1] if by_rows else BLOCK
        self.block: int = triton.next_power_of_2(self.width)
        self.rows = max(1, BLOCK // self.block)
        num_rows = -(-tensor.numel() // max(self.width, 1))
        self.grid = grid(tensor) if grid(tensor) == (1,) else (-(-num_rows // self.rows),)


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
    """Where the cotangent is zero, y does not count: it may be non-finite."""
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
    """Where the cotangent is zero, the row does not count: it may be non-finite."""
    row = tl.program_id(0).to(tl.int64)
    by = tl.load(by_out + row)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < width
        value = tl.load(rows + row * width + columns, mask=mask, other=0.0)
        tl.store(by_rows + row * width + columns, tl.where(by == 0, 0.0, 2 * by * value), mask=mask)


@triton.jit
def _length(rows):
    return tl.sqrt(tl.sum(rows * rows, axis=1))[:, None]


@triton.jit
def _by_cut(by, rows, longest):
    """From the cotangent of rows that were cut to that of the rows. Rows whose cotangent is
    zero may be non-finite."""
    live = tl.max(tl.abs(by), axis=1)[:, None] > 0
    rows = tl.where(live, rows, 0.0)
    length = _length(rows)
    long = length > longest
    safe = tl.where(long, length, 1.0)
    along = tl.sum(rows * by, axis=1)[:, None] / (safe * safe)
    return tl.where(long, longest / safe * (by - along * rows), by)


@triton.jit
def _times(by, values):
    """The product, zero where the derivative is: the values may be non-finite there."""
    return tl.where(by == 0, 0.0, by * values)


@triton.jit
def momentum_step(
    y, velocity, gradient, learning_rate, momentum, point, last_point, last_gradient, curvature,
    new_y, new_velocity, ahead, new_curvature, size, width, closest, longest,
    CUT: tl.constexpr, SAFE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    mu, alpha = tl.load(momentum).to(tl.float32), tl.load(learning_rate).to(tl.float32)
    columns = tl.arange(0, WIDTH)[None, :]
    num_rows = tl.cdiv(size, width)
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        at = rows * width + columns
        mask = (columns < width) & (at < size)
        g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
        step = alpha * g
        if SAFE:
            within = rows < num_rows
            here = tl.load(point + at, mask=mask, other=0.0).to(tl.float32)
            moved = _length(here - tl.load(last_point + at, mask=mask, other=0.0))
            bent = _length(g - tl.load(last_gradient + at, mask=mask, other=0.0))
            far = moved > closest * _length(here)
            secant = tl.where(far, bent / tl.where(far, moved, 1.0), 0.0)
            largest = tl.load(curvature + rows, mask=within, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, secant)
            tl.store(new_curvature + rows, largest, mask=within)
            step = step / tl.maximum(alpha * largest, 1.0)
        v = mu * tl.load(velocity + at, mask=mask, other=0.0) - step
        if CUT:
            v = v * (longest / tl.maximum(_length(v), longest))
        moved_to = tl.load(y + at, mask=mask, other=0.0) + v
        tl.store(new_velocity + at, v, mask=mask)
        tl.store(new_y + at, moved_to, mask=mask)
        tl.store(ahead + at, moved_to + mu * v, mask=mask)


@triton.jit
def momentum_step_backward(
    by_y, by_velocity, by_ahead,
    velocity, gradient, learning_rate, momentum, curvature,
    out_y, out_velocity, out_gradient, by_scalars, size, width, num_programs,
    longest,
    HAS_Y: tl.constexpr, HAS_VELOCITY: tl.constexpr, HAS_AHEAD: tl.constexpr,
    CUT: tl.constexpr, SAFE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The step once more, and then back through it."""
    program = tl.program_id(0)
    mu, alpha = tl.load(momentum).to(tl.float32), tl.load(learning_rate).to(tl.float32)
    columns = tl.arange(0, WIDTH)[None, :]
    num_rows = tl.cdiv(size, width)
    by_mu = tl.zeros([ROWS, WIDTH], tl.float32)
    by_alpha = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(program * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        at = rows * width + columns
        mask = (columns < width) & (at < size)
        v = tl.load(velocity + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
        step = alpha * g
        if SAFE:
            curved = tl.load(curvature + rows, mask=rows < num_rows, other=0.0).to(tl.float32)
            share = 1 / tl.maximum(alpha * curved, 1.0)
            step = step * share
        whole = mu * v - step
        new_v = whole
        if CUT:
            new_v = whole * (longest / tl.maximum(_length(whole), longest))
        to_y = tl.zeros([ROWS, WIDTH], tl.float32)
        to_v = tl.zeros([ROWS, WIDTH], tl.float32)
        if HAS_Y:
            to_y += tl.load(by_y + at, mask=mask, other=0.0)
        if HAS_VELOCITY:
            to_v += tl.load(by_velocity + at, mask=mask, other=0.0)
        if HAS_AHEAD:
            to_ahead = tl.load(by_ahead + at, mask=mask, other=0.0)
            to_y += to_ahead
            to_v += mu * to_ahead
            by_mu += _times(to_ahead, new_v)
        to_v += to_y
        if CUT:
            to_v = _by_cut(to_v, whole, longest)
        by_mu += _times(to_v, v)
        to_g = -alpha * to_v
        if SAFE:  # where the curvature limits the step, alpha cancels
            by_alpha -= tl.where(alpha * curved < 1.0, _times(to_v, g), 0.0)
            to_g = _times(to_g, share)
        else:
            by_alpha -= _times(to_v, g)
        tl.store(out_y + at, to_y, mask=mask)
        tl.store(out_velocity + at, mu * to_v, mask=mask)
        tl.store(out_gradient + at, to_g, mask=mask)
    tl.store(by_scalars + program, tl.sum(tl.sum(by_alpha, axis=1), axis=0))
    tl.store(by_scalars + num_programs + program, tl.sum(tl.sum(by_mu, axis=1), axis=0))
