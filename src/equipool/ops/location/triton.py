"""Location search on a GPU: one kernel forward, two backward.

A program has a set and a block of features. The first tile of a set stays in registers, so a set of
up to `TILE` elements is read once, however many passes the search takes. Blocks of features do not
cross the heads of the weights.
"""

# ruff: noqa: N803
from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 32  # elements
LONG = 2048  # elements of a set on average: from here on narrow blocks, for more programs


def solve(
    x: Tensor, index: Tensor, counts: Tensor, tau: Tensor, delta: Tensor, weight: Tensor | None,
    ridge: Tensor | None, max_passes: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`naive.solve`, with weights by heads, `[N, H]`."""
    ptr, blocks = _offsets(index, counts), Blocks(x, counts, weight)
    y = torch.empty(counts.shape[0], *tau.shape, dtype=torch.float32, device=x.device)
    error, passes = torch.empty_like(y), counts.new_zeros(counts.shape[0], blocks.count)
    if y.numel():
        search[counts.shape[0], blocks.count](
            x, ptr, counts, blocks.bounds, tau, delta, weight, ridge, y, error, passes,
            max_passes, tau.shape[0], x.shape[1], blocks.heads, blocks.count, TILE=TILE,
            BLOCK=blocks.width,
        )  # fmt: skip
    return y, error, passes.amax(-1)


def adjoint(
    by_y: Tensor, saved: Sequence[Any], floor: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """`naive.adjoint`, with weights by heads."""
    x, index, counts, tau, delta, weight, ridge, y = saved
    ptr, blocks = _offsets(index, counts), Blocks(x, counts, weight)
    by_tau, by_delta, scaled, floored = (torch.zeros_like(y) for _ in range(4))
    by_x = torch.zeros_like(x, dtype=y.dtype)
    parts = None if weight is None else by_x.new_zeros(x.shape[0], blocks.count)
    if y.numel():
        sizes = (tau.shape[0], x.shape[1], blocks.heads, blocks.count)
        curvatures[counts.shape[0], blocks.count, tau.shape[0]](
            by_y.contiguous(), y, x, ptr, counts, blocks.bounds, tau, delta, weight, ridge, by_tau,
            by_delta, scaled, floored, floor, *sizes, TILE=TILE, BLOCK=blocks.width,
        )  # fmt: skip
        elements[counts.shape[0], blocks.count](
            y, x, ptr, counts, blocks.bounds, tau, delta, weight, scaled, floored, by_x, parts,
            *sizes, TILE=TILE, BLOCK=blocks.width,
        )  # fmt: skip
    by_weight = None
    if weight is not None and parts is not None:
        by_weight = torch.zeros_like(weight, dtype=y.dtype)
        by_weight = by_weight.index_add(1, blocks.bounds[:, 2].long(), parts)
    by_ridge = None if ridge is None else -y * scaled
    return by_x, by_tau.sum(0), by_delta.sum(0), by_weight, by_ridge


def _offsets(index: Tensor, counts: Tensor) -> Tensor:
    return torch.searchsorted(index, torch.arange(counts.shape[0] + 1, device=index.device))


class Blocks:
    """How the features are divided: of each block the first feature, the end and the head."""

    def __init__(self, x: Tensor, counts: Tensor, weight: Tensor | None) -> None:
        num_features = x.shape[1]
        self.heads: int = 1 if weight is None else weight.shape[1]
        ends = [math.ceil(head * num_features / self.heads) for head in range(self.heads + 1)]
        is_long = x.shape[0] > LONG * max(counts.shape[0], 1)
        widest = max(after - before for before, after in pairwise(ends))
        self.width = min(16 if is_long else 64, triton.next_power_of_2(max(widest, 1)))
        bounds = [
            (first, min(first + self.width, ends[head + 1]), head)
            for head in range(self.heads)
            for first in range(ends[head], ends[head + 1], self.width)
        ]
        self.count = len(bounds)
        self.bounds = torch.tensor(bounds, dtype=torch.int32, device=x.device).view(-1, 3)


@triton.jit
def _part(ptr, counts, bounds, row, block, BLOCK: tl.constexpr):
    """A set's elements, none if it counts as empty, and a block's features and head."""
    begin, end = tl.load(ptr + row), tl.load(ptr + row + 1)
    end = tl.where(tl.load(counts + row) > 0, end, begin)
    columns = tl.load(bounds + 3 * block) + tl.arange(0, BLOCK)
    inside = columns < tl.load(bounds + 3 * block + 1)
    return begin.to(tl.int32), end.to(tl.int32), columns, inside, tl.load(bounds + 3 * block + 2)


@triton.jit
def _tile(x, weight, rows, end, columns, inside, head, num_features, heads):
    """Features and weights of some elements, 0 beyond the set and beyond the block."""
    within = rows < end
    mask = within[:, None] & inside[None, :]
    at = rows.to(tl.int64)
    v = tl.load(x + at[:, None] * num_features + columns[None, :], mask=mask, other=0.0)
    if weight is None:
        a = tl.where(within, 1.0, 0.0)
    else:
        a = tl.load(weight + at * heads + head, mask=within, other=0.0).to(tl.float32)
    return v.to(tl.float32), tl.where(mask, a[:, None], 0.0)


@triton.jit
def _narrowness(delta, at, inside):
    """1 / delta. A larger one than 1e15 gives the same minimum."""
    return 1 / tl.minimum(tl.load(delta + at, mask=inside, other=1.0).to(tl.float32), 1e15)


@triton.jit
def _penalty(v, a, y, tau, narrowness):
    """Of each element: its side, weight times side c, s = |u| / delta and r = (1 + s^2)^(-1/2)."""
    u = v - y[None, :]
    side = tl.where(u > 0, tau[None, :], 1 - tau[None, :])
    s = tl.minimum(tl.abs(u) * narrowness[None, :], 1e18)
    return u > 0, side * a, s, tl.rsqrt(1 + s * s)


@triton.jit
def _slopes(v, a, y, tau, narrowness, wide):
    """Sums over a tile: the slope, for narrow penalties without that of the signs; the curvature
    times delta; and the weight at or below y."""
    above, c, s, r = _penalty(v, a, y, tau, narrowness)
    part = c * tl.where(wide[None, :], s * r, -r * r / (1 + s * r))
    slope = tl.sum(tl.where(above, part, -part), axis=0)
    return slope, tl.sum(c * r * r * r, axis=0), tl.sum(tl.where(above, 0.0, a), axis=0)


@triton.jit
def _extent(v, a):
    """Sums over a tile of weights and of weighted features, and the extremes of the features."""
    real = a > 0
    low = tl.min(tl.where(real, v, float("inf")), axis=0)
    high = tl.max(tl.where(real, v, -float("inf")), axis=0)
    return tl.sum(a * v, axis=0), tl.sum(a, axis=0), low, high


@triton.jit
def search(
    x, ptr, counts, bounds, tau, delta, weight, ridge, y, error, passes, max_passes,
    num_asymmetries, num_features, heads, num_blocks, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0), tl.program_id(1)
    begin, end, columns, inside, head = _part(ptr, counts, bounds, row, block, BLOCK)
    first = begin + tl.arange(0, TILE)
    v, a = _tile(x, weight, first, end, columns, inside, head, num_features, heads)
    total, mass, low, high = _extent(v, a)
    for start in range(begin + TILE, end, TILE):
        w, b = _tile(
            x, weight, start + tl.arange(0, TILE), end, columns, inside, head, num_features, heads
        )
        more, more_mass, lower, higher = _extent(w, b)
        total, mass = total + more, mass + more_mass
        low, high = tl.minimum(low, lower), tl.maximum(high, higher)
    occupied = inside & (mass > 0)
    low, high = tl.where(occupied, low, 0.0), tl.where(occupied, high, 0.0)
    mean = tl.where(occupied, total / tl.where(occupied, mass, 1.0), 0.0)
    mean = tl.minimum(tl.maximum(mean, low), high)
    if ridge is not None:  # it pulls towards 0
        low, high = tl.minimum(low, 0.0), tl.maximum(high, 0.0)
    spread = high - low
    most = 0
    for asymmetry in range(num_asymmetries):
        at = asymmetry * num_features + columns
        t = tl.load(tau + at, mask=inside, other=0.5).to(tl.float32)
        narrowness = _narrowness(delta, at, inside)
        out = row.to(tl.int64) * num_asymmetries * num_features + at
        pull = tl.zeros([BLOCK], tl.float32)
        if ridge is not None:
            pull = tl.load(ridge + out, mask=inside, other=0.0)
        wide = 1 / narrowness >= spread
        coarse = tl.floor(t * 4096 + 0.5) / 4096  # times a count, exact in float32
        z, below, above = mean, low, high
        last = above - below
        before = last
        unsettled = occupied
        moving = tl.max(tl.where(unsettled, 1, 0), axis=0)
        done = 0
        while (done < max_passes) & (moving > 0):
            slope, bend, under = _slopes(v, a, z, t, narrowness, wide)
            for start in range(begin + TILE, end, TILE):
                w, b = _tile(
                    x, weight, start + tl.arange(0, TILE), end, columns, inside, head,
                    num_features, heads,
                )  # fmt: skip
                more, more_bend, more_under = _slopes(w, b, z, t, narrowness, wide)
                slope, bend, under = slope + more, bend + more_bend, under + more_under
            signs = (coarse * mass - under) + (t - coarse) * mass
            slope += tl.where(wide, 0.0, signs) - pull * z
            c = t * (mass - under) + (1 - t) * under
            curvature = tl.maximum(bend * narrowness + pull, 1e-30)
            final = 1e-6 * tl.minimum(spread, c / curvature) + 1.2e-7 * tl.abs(z)
            below = tl.where(slope > 0, z, below)
            above = tl.where(slope > 0, above, z)
            new = z + slope / curvature
            step = tl.abs(new - z)
            outside = (new <= below) | (new >= above) | (step > 0.5 * before)
            new = tl.where((step > final) & outside, 0.5 * (below + above), new)
            new = tl.minimum(tl.maximum(new, low), high)
            before = last
            last = tl.where(occupied, tl.abs(new - z), 0.0)
            z = tl.where(occupied, new, 0.0)
            unsettled = occupied & (last > final) & (above - below > final)
            moving = tl.max(tl.where(unsettled, 1, 0), axis=0)
            done += 1
        most = tl.maximum(most, done)
        tl.store(y + out, z, mask=inside)
        off = tl.where(occupied, last + 1.2e-7 * tl.abs(z), 0.0)
        tl.store(error + out, tl.where(unsettled, float("inf"), off), mask=inside)
    tl.store(passes + row * num_blocks + block, most)


@triton.jit
def curvatures(
    by_y, y, x, ptr, counts, bounds, tau, delta, weight, ridge, by_tau, by_delta, scaled, floored,
    floor, num_asymmetries, num_features, heads, num_blocks,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, block, asymmetry = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, end, columns, inside, head = _part(ptr, counts, bounds, row, block, BLOCK)
    at = asymmetry * num_features + columns
    t = tl.load(tau + at, mask=inside, other=0.5).to(tl.float32)
    narrowness = _narrowness(delta, at, inside)
    out = row.to(tl.int64) * num_asymmetries * num_features + at
    z = tl.load(y + out, mask=inside, other=0.0)
    by = tl.load(by_y + out, mask=inside, other=0.0).to(tl.float32)
    bend, c_sum = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    to_tau, to_delta = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    low = tl.full([BLOCK], float("inf"), tl.float32)
    high = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(begin, end, TILE):
        rows = start + tl.arange(0, TILE)
        v, a = _tile(x, weight, rows, end, columns, inside, head, num_features, heads)
        above, c, s, r = _penalty(v, a, z, t, narrowness)
        cube = c * r * r * r
        bend += tl.sum(cube, axis=0)
        c_sum += tl.sum(c, axis=0)
        to_tau += tl.sum(a * s * r, axis=0)
        to_delta += tl.sum(tl.where(above, cube * s, -cube * s), axis=0)
        _, _, lower, higher = _extent(v, a)
        low, high = tl.minimum(low, lower), tl.maximum(high, higher)
    occupied = inside & (c_sum > 0)
    curvature = bend * narrowness
    if ridge is not None:
        curvature += tl.load(ridge + out, mask=inside, other=0.0)
        low, high = tl.minimum(low, 0.0), tl.maximum(high, 0.0)
    spread = tl.where(occupied, high - low, 1.0)
    steep = tl.maximum(curvature, floor * c_sum / tl.maximum(spread, 1 / narrowness))
    by_curvature = tl.where(occupied, by / tl.maximum(curvature, 1e-30), 0.0)
    by_steep = tl.where(occupied, by / tl.maximum(steep, 1e-30), 0.0)
    tl.store(by_tau + out, to_tau * by_steep, mask=inside)
    tl.store(by_delta + out, -to_delta * narrowness * by_curvature, mask=inside)
    tl.store(scaled + out, by_curvature, mask=inside)
    tl.store(floored + out, by_steep, mask=inside)


@triton.jit
def elements(
    y, x, ptr, counts, bounds, tau, delta, weight, scaled, floored, by_x, by_weight,
    num_asymmetries, num_features, heads, num_blocks, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0), tl.program_id(1)
    begin, end, columns, inside, head = _part(ptr, counts, bounds, row, block, BLOCK)
    for start in range(begin, end, TILE):
        rows = start + tl.arange(0, TILE)
        v, a = _tile(x, weight, rows, end, columns, inside, head, num_features, heads)
        to_v = tl.zeros([TILE, BLOCK], tl.float32)
        to_a = tl.zeros([TILE, BLOCK], tl.float32)
        for asymmetry in range(num_asymmetries):
            at = asymmetry * num_features + columns
            t = tl.load(tau + at, mask=inside, other=0.5).to(tl.float32)
            narrowness = _narrowness(delta, at, inside)
            out = row.to(tl.int64) * num_asymmetries * num_features + at
            z = tl.load(y + out, mask=inside, other=0.0)
            by = tl.load(scaled + out, mask=inside, other=0.0)
            above, c, s, r = _penalty(v, a, z, t, narrowness)
            to_v += c * r * r * r * (by * narrowness)[None, :]
            if by_weight is not None:
                by_floor = tl.load(floored + out, mask=inside, other=0.0)
                side = tl.where(above, t[None, :], t[None, :] - 1)
                to_a += side * s * r * by_floor[None, :]
        place = rows.to(tl.int64)
        mask = (rows < end)[:, None] & inside[None, :]
        tl.store(by_x + place[:, None] * num_features + columns[None, :], to_v, mask=mask)
        if by_weight is not None:
            tl.store(by_weight + place * num_blocks + block, tl.sum(to_a, axis=1), mask=rows < end)
