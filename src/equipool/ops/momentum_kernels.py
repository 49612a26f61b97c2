"""Triton kernels of `momentum.py`: small batches are bound by the number of kernels launched."""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

from equipool.ops.launching import BLOCK, grid, total

__all__ = ["BLOCK", "backward", "forward", "grid", "store_sum", "total"]


@triton.jit
def forward(
    y, velocity, gradient, learning_rate, momentum, new_y, new_velocity, ahead, size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    mu, alpha = tl.load(momentum).to(tl.float32), tl.load(learning_rate).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for start in range(first, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < size
        v = mu * tl.load(velocity + at, mask=mask) - alpha * tl.load(gradient + at, mask=mask)
        moved = tl.load(y + at, mask=mask) + v
        tl.store(new_velocity + at, v, mask=mask)
        tl.store(new_y + at, moved, mask=mask)
        tl.store(ahead + at, moved + mu * v, mask=mask)


@triton.jit
def store_sum(sums, own, later, HAS_LATER: tl.constexpr):
    """A program's part of the derivative by a scalar; the first adds that of the later steps."""
    program = tl.program_id(0)
    if HAS_LATER:
        own += tl.load(later, mask=program == 0, other=0.0).to(tl.float32)
    tl.store(sums + program, own)


@triton.jit
def backward(
    by_y, by_velocity, by_ahead, by_rate, by_momentum,
    velocity, new_velocity, learning_rate, momentum,
    out_y, out_velocity, out_gradient, by_scalars, size, num_programs,
    HAS_Y: tl.constexpr, HAS_VELOCITY: tl.constexpr, HAS_AHEAD: tl.constexpr,
    HAS_RATE: tl.constexpr, HAS_MOMENTUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient that the step read is not kept: `alpha g = mu v - new v` tells it."""
    program = tl.program_id(0)
    mu, alpha = tl.load(momentum).to(tl.float32), tl.load(learning_rate).to(tl.float32)
    by_alpha = tl.zeros([BLOCK], tl.float32)
    by_mu = tl.zeros([BLOCK], tl.float32)
    for start in range(program.to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < size
        v = tl.load(velocity + at, mask=mask, other=0.0)
        new_v = tl.load(new_velocity + at, mask=mask, other=0.0)
        to_y = tl.zeros([BLOCK], tl.float32)
        to_v = tl.zeros([BLOCK], tl.float32)
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
        by_mu += to_v * v
        by_alpha += to_v * (new_v - mu * v)
        tl.store(out_y + at, to_y, mask=mask)
        tl.store(out_velocity + at, mu * to_v, mask=mask)
        tl.store(out_gradient + at, -alpha * to_v, mask=mask)
    of_alpha = tl.sum(by_alpha, axis=0) / tl.maximum(alpha, 1e-38)
    of_mu = tl.sum(by_mu, axis=0)
    store_sum(by_scalars, of_alpha, by_rate, HAS_RATE)
    store_sum(by_scalars + num_programs, of_mu, by_momentum, HAS_MOMENTUM)
