"""Triton kernels of `restrained.py`."""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from equipool.ops.launching import BLOCK, grid, total
from equipool.ops.momentum_kernels import store_sum

__all__ = ["Shape", "backward", "forward", "total"]


class Shape:
    """How many rows `[num_rows, K]` a program takes at a time, and how many programs there are."""

    def __init__(self, rows: Tensor) -> None:
        self.width: int = triton.next_power_of_2(rows.shape[-1])
        self.rows = max(1, BLOCK // self.width)
        self.grid = grid(rows) if grid(rows) == (1,) else (-(-rows.shape[0] // self.rows),)


@triton.jit
def _length(rows):
    return tl.sqrt(tl.sum(rows * rows, axis=1))[:, None]


@triton.jit
def _by_cut(by, rows, longest):
    """From the gradient by rows that were cut to the one by the rows."""
    length = _length(rows)
    long = length > longest
    safe = tl.where(long, length, 1.0)
    along = tl.sum(rows * by, axis=1)[:, None] / (safe * safe)
    return tl.where(long, longest / safe * (by - along * rows), by)


@triton.jit
def forward(
    y, velocity, gradient, learning_rate, momentum, point, last_point, last_gradient, curvature,
    new_y, new_velocity, ahead, new_curvature, num_rows, width, longest, longest_gradient,
    CUT: tl.constexpr, CUT_GRADIENT: tl.constexpr, SAFE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    mu, alpha = tl.load(momentum).to(tl.float32), tl.load(learning_rate).to(tl.float32)
    columns = tl.arange(0, WIDTH)[None, :]
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        within = rows < num_rows
        at, mask = rows * width + columns, within & (columns < width)
        g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
        largest = tl.load(curvature + rows, mask=within, other=0.0).to(tl.float32)
        share = tl.full(largest.shape, 1.0, tl.float32)
        if SAFE:
            here = tl.load(point + at, mask=mask, other=0.0).to(tl.float32)
            moved = _length(here - tl.load(last_point + at, mask=mask, other=0.0))
            bent = _length(g - tl.load(last_gradient + at, mask=mask, other=0.0))
            secant = tl.where(moved > 0, bent / tl.where(moved > 0, moved, 1.0), 0.0)
            largest = tl.maximum(largest, secant)
            share = 1 / tl.maximum(alpha * largest, 1.0)
        tl.store(new_curvature + rows, largest, mask=within)
        if CUT_GRADIENT:
            g = g * (longest_gradient / tl.maximum(_length(g), longest_gradient))
        v = mu * tl.load(velocity + at, mask=mask, other=0.0) - alpha * (share * g)
        if CUT:
            v = v * (longest / tl.maximum(_length(v), longest))
        moved_to = tl.load(y + at, mask=mask, other=0.0) + v
        tl.store(new_velocity + at, v, mask=mask)
        tl.store(new_y + at, moved_to, mask=mask)
        tl.store(ahead + at, moved_to + mu * v, mask=mask)


@triton.jit
def backward(
    by_y, by_velocity, by_ahead, by_rate, by_momentum,
    velocity, gradient, learning_rate, momentum, curvature,
    out_y, out_velocity, out_gradient, by_scalars, num_rows, width, num_programs,
    longest, longest_gradient,
    HAS_Y: tl.constexpr, HAS_VELOCITY: tl.constexpr, HAS_AHEAD: tl.constexpr,
    HAS_RATE: tl.constexpr, HAS_MOMENTUM: tl.constexpr,
    CUT: tl.constexpr, CUT_GRADIENT: tl.constexpr, SAFE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The step once more, and then back through it."""
    program = tl.program_id(0)
    mu, alpha = tl.load(momentum).to(tl.float32), tl.load(learning_rate).to(tl.float32)
    columns = tl.arange(0, WIDTH)[None, :]
    by_mu = tl.zeros([ROWS, WIDTH], tl.float32)
    by_alpha = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(program * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        within = rows < num_rows
        at, mask = rows * width + columns, within & (columns < width)
        v = tl.load(velocity + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
        scaled = tl.zeros([ROWS, 1], tl.float32)
        if SAFE:
            scaled = alpha * tl.load(curvature + rows, mask=within, other=0.0).to(tl.float32)
        share = 1 / tl.maximum(scaled, 1.0)
        followed = g
        if CUT_GRADIENT:
            followed = g * (longest_gradient / tl.maximum(_length(g), longest_gradient))
        whole = mu * v - alpha * (share * followed)
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
            by_mu += to_ahead * new_v
        to_v += to_y
        if CUT:
            to_v = _by_cut(to_v, whole, longest)
        by_mu += to_v * v
        by_alpha -= tl.where(scaled < 1.0, to_v * followed, 0.0)
        to_g = -alpha * share * to_v
        if CUT_GRADIENT:
            to_g = _by_cut(to_g, g, longest_gradient)
        tl.store(out_y + at, to_y, mask=mask)
        tl.store(out_velocity + at, mu * to_v, mask=mask)
        tl.store(out_gradient + at, to_g, mask=mask)
    of_alpha = tl.sum(tl.sum(by_alpha, axis=1), axis=0)
    of_mu = tl.sum(tl.sum(by_mu, axis=1), axis=0)
    store_sum(by_scalars, of_alpha, by_rate, HAS_RATE)
    store_sum(by_scalars + num_programs, of_mu, by_momentum, HAS_MOMENTUM)
