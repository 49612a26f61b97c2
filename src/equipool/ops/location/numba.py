"""The kernels of `locate` for CPUs: one loop over a set that stays in cache, for each block of
channels. Rows of the flat state hold one number per channel of the block; the names below are
their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipool.ops.fused import BLOCK, compiled, ranges_of, run
from equipool.ops.location.naive import heads_of

F = np.float32
ZERO, HALF, ONE, INF, NAN = F(0), F(0.5), F(1), F(np.inf), F(np.nan)
LIMIT = F(1e18)  # of |s|: its square stays finite
STEP, ROUNDING, CAP = F(1e-6), F(1.2e-7), F(1e4)
TAIL, BELOW, CURVE, TAILS, BELOWS, CURVES, Y, INVERSE, UP, NEAR, GAP, LOW, HIGH, TOTAL, MEAN = (
    range(0, 15 * BLOCK, BLOCK)
)
LEFT, RIGHT, LAST, BEFORE, RIDGE, BOUND, OPEN, SPREAD, ROWS = range(15 * BLOCK, 24 * BLOCK, BLOCK)
SUMS = 3 * BLOCK  # the first three rows
PART = 512  # elements in a partial sum, which keeps the digits of long sums


@compiled
def _load(xs, ws, state, x, weight, begin, count, first, width):
    """Copy a set's block of channels; sums and range of its elements."""
    for k in range(BLOCK):
        state[LOW + k], state[HIGH + k], state[TOTAL + k], state[MEAN + k] = INF, -INF, ZERO, ZERO
    for i in range(count):
        for k in range(width):
            xs[i * BLOCK + k] = x[begin + i, first + k]
            if weight is not None:
                ws[i * BLOCK + k] = weight[begin + i, first + k]
        for k in range(BLOCK):
            value, share = xs[i * BLOCK + k], ONE
            low, high = state[LOW + k], state[HIGH + k]
            if weight is not None:
                share = ws[i * BLOCK + k]
            state[MEAN + k] += share * value
            state[TOTAL + k] += share
            state[LOW + k] = value if (value < low) & (share > ZERO) else low
            state[HIGH + k] = value if (value > high) & (share > ZERO) else high


@compiled
def _begin(state, tau, delta, ridge, b, q, first, width):
    """Penalty, range and start of a block of channels."""
    for k in range(width):
        state[UP + k], state[INVERSE + k] = tau[q, first + k], delta[q, first + k]
        state[RIDGE + k] = ZERO if ridge is None else ridge[b, q, first + k]
    for k in range(BLOCK):
        low, high, total, mean = state[LOW + k], state[HIGH + k], state[TOTAL + k], state[MEAN + k]
        wide, pulled = state[INVERSE + k], state[RIDGE + k] > ZERO
        finite = (high - low < INF) & (mean - mean == ZERO)
        mean = mean / total
        mean = mean if mean > low else low
        mean = mean if mean < high else high
        low, high = (
            (low if (low < ZERO) | (not pulled) else ZERO),
            (high if (high > ZERO) | (not pulled) else ZERO),
        )
        spread = high - low
        if ridge is None:  # up to rounding, a larger width gives the same minimum
            cap = CAP * spread if spread > ZERO else ONE
            wide = wide if wide < cap else cap
        state[INVERSE + k], state[NEAR + k] = ONE / wide, ONE if wide >= spread else ZERO
        state[LEFT + k], state[RIGHT + k], state[SPREAD + k] = low, high, spread
        state[LAST + k], state[BEFORE + k] = spread, spread
        state[OPEN + k] = ONE if finite & (total > ZERO) else ZERO
        state[BOUND + k] = INF if total > ZERO else ZERO
        state[Y + k] = ZERO if total == ZERO else mean if finite else NAN


@compiled
def _clear(state):
    for k in range(2 * SUMS):
        state[k] = ZERO


@compiled
def _sum(xs, ws, state, count, weighted):
    """Sum the slope's tails, the weight below y and the curvature; the distance to an element."""
    _clear(state)
    for k in range(BLOCK):
        state[GAP + k] = INF
    for i in range(count):
        for k in range(BLOCK):
            u = xs[i * BLOCK + k] - state[Y + k]
            up, gap, near = state[UP + k], state[GAP + k], state[NEAR + k]
            size = abs(u)
            s = size * state[INVERSE + k]
            s = s if s < LIMIT else LIMIT
            square = ONE + s * s
            r = ONE / np.sqrt(square)
            share = ws[i * BLOCK + k] if weighted else ONE
            c = share * (up if u > ZERO else ONE - up)
            slope = c * (s * r if near > ZERO else -(r / (square * r + s)))
            state[TAIL + k] += slope if u > ZERO else -slope
            state[BELOW + k] += ZERO if u > ZERO else share
            state[CURVE + k] += c * (r * r * r)
            state[GAP + k] = size if size < gap else gap
        if i % PART == PART - 1 or i == count - 1:
            for k in range(SUMS):
                state[SUMS + k] += state[k]
                state[k] = ZERO


@compiled
def _step(state):
    """Move the channels of a block; how many have to move again."""
    open_channels = 0
    for k in range(BLOCK):
        y, up, below, total = state[Y + k], state[UP + k], state[BELOWS + k], state[TOTAL + k]
        inverse, ridge, spread, gap = (
            state[INVERSE + k],
            state[RIDGE + k],
            state[SPREAD + k],
            state[GAP + k],
        )
        left, right, before, last = (
            state[LEFT + k],
            state[RIGHT + k],
            state[BEFORE + k],
            state[LAST + k],
        )
        is_open, bound, near = state[OPEN + k] > ZERO, state[BOUND + k], state[NEAR + k]
        slope = state[TAILS + k] + (ONE - near) * (up * total - below) - ridge * y
        curvature = state[CURVES + k] * inverse + ridge
        local = (up * (total - below) + (ONE - up) * below) / curvature
        tolerance = STEP * (local if local < spread else spread) + ROUNDING * abs(y)
        left, right = (y if slope > ZERO else left), (right if slope > ZERO else y)
        step = slope / curvature
        z, size = y + step, abs(step)
        after = (
            F(1.1) * size * size * inverse
        )  # the error after this step, if it crosses no element
        smooth = (after <= tolerance) & (size * inverse <= F(0.1)) & (size <= HALF * gap)
        newton = smooth | (size <= tolerance)
        final = newton | (right - left <= tolerance)
        newton = newton | ((z > left) & (z < right) & (size <= HALF * before))
        z = (z if newton else HALF * (left + right)) if is_open else y
        after = (after if smooth else size) + ROUNDING * abs(z)
        state[BOUND + k] = (after if final else INF) if is_open else bound
        state[LEFT + k], state[RIGHT + k], state[Y + k] = left, right, z
        state[BEFORE + k], state[LAST + k] = last, abs(z - y)
        state[OPEN + k] = ONE if is_open & (not final) else ZERO
        open_channels += 1 if is_open & (not final) else 0
    return open_channels


@compiled
def _bend(xs, ws, bends, pulls, state, count, weighted):
    """Each element's share of the curvature and of the slope, and the sums of the adjoint."""
    for i in range(count):
        for k in range(BLOCK):
            u, up = xs[i * BLOCK + k] - state[Y + k], state[UP + k]
            s = abs(u) * state[INVERSE + k]
            s = s if s < LIMIT else LIMIT
            r = ONE / np.sqrt(ONE + s * s)
            side, share = (up if u > ZERO else ONE - up), (ws[i * BLOCK + k] if weighted else ONE)
            bend, pull = share * side * (r * r * r), side * s * r
            bends[i * BLOCK + k] = bend
            if weighted:
                pulls[i * BLOCK + k] = pull if u > ZERO else -pull
            state[TAIL + k] += share * s * r
            state[BELOW + k] += ZERO if u > ZERO else share
            state[CURVE + k] += bend
            state[TAILS + k] += bend * s if u > ZERO else -bend * s


@compiled
def _share(state, floor):
    """The cotangents per set, and the factors of those per element."""
    for k in range(BLOCK):
        up, below, is_open = state[UP + k], state[BELOW + k], state[OPEN + k] > ZERO
        by_y, inverse, spread, ridge = (
            state[BOUND + k],
            state[INVERSE + k],
            state[SPREAD + k],
            state[RIDGE + k],
        )
        tails, y, by_tau = state[TAILS + k], state[Y + k], state[TAIL + k]
        curvature = state[CURVE + k] * inverse + ridge
        scale = (
            ONE / spread if inverse * spread > ONE else inverse
        )  # flat is what is wider than delta
        least = floor * scale * (up * (state[TOTAL + k] - below) + (ONE - up) * below)
        by_y = by_y / curvature
        floored = by_y * (curvature / least if least > curvature else ONE)
        state[CURVE + k] = by_y * inverse if is_open else ZERO
        state[GAP + k] = floored if is_open else ZERO
        state[TAIL + k] = by_tau * floored if is_open else ZERO
        state[TAILS + k] = tails * by_y * inverse if is_open else ZERO
        state[RIDGE + k] = -by_y * y if is_open else ZERO


@compiled
def _add(bends, pulls, of_x, of_weight, state, count, first, weighted):
    """Add one asymmetry to the cotangents of the elements."""
    for i in range(count):
        for k in range(BLOCK):
            is_open, at = state[OPEN + k] > ZERO, i * BLOCK + k
            old = ZERO if first else of_x[at]
            of_x[at] = old + (bends[at] * state[CURVE + k] if is_open else ZERO)
            if weighted:
                old = ZERO if first else of_weight[at]
                of_weight[at] = old + (pulls[at] * state[GAP + k] if is_open else ZERO)


@compiled
def _solve(
    x, begins, counts, tau, delta, weight, ridge, limit, y, error, passes,
    number, first_set, last_set, first, last,
):  # fmt: skip
    longest = counts[first_set:last_set].max() * BLOCK
    state = np.full(ROWS, HALF)
    xs, ws = np.zeros(longest, F), np.zeros(longest if weight is not None else 0, F)
    for b in range(first_set, last_set):
        for k in range(first, last, BLOCK):
            width, most = min(BLOCK, last - k), 0
            _load(xs, ws, state, x, weight, begins[b], counts[b], k, width)
            for q in range(tau.shape[0]):
                _begin(state, tau, delta, ridge, b, q, k, width)
                number_of_passes, open_channels = 0, counts[b]
                while open_channels > 0 and number_of_passes < limit:
                    number_of_passes += 1
                    _sum(xs, ws, state, counts[b], weight is not None)
                    open_channels = _step(state)
                most = max(most, number_of_passes)
                for j in range(width):
                    y[b, q, k + j], error[b, q, k + j] = state[Y + j], state[BOUND + j]
            passes[k // BLOCK, b] = most


@compiled
def _adjoint(
    by_y, x, begins, counts, tau, delta, weight, ridge, y, floor,
    by_x, by_tau, by_delta, by_weight, by_ridge, number, first_set, last_set, first, last,
):  # fmt: skip
    longest = counts[first_set:last_set].max() * BLOCK
    state = np.full(ROWS, HALF)
    xs, ws = np.zeros(longest, F), np.zeros(longest if weight is not None else 0, F)
    bends, pulls, of_x, of_weight = xs.copy(), ws.copy(), xs.copy(), ws.copy()
    for b in range(first_set, last_set):
        for k in range(first, last, BLOCK):
            width = min(BLOCK, last - k)
            _load(xs, ws, state, x, weight, begins[b], counts[b], k, width)
            for q in range(tau.shape[0]):
                _begin(state, tau, delta, ridge, b, q, k, width)
                _clear(state)
                for j in range(width):
                    state[Y + j] = y[b, q, k + j]
                _bend(xs, ws, bends, pulls, state, counts[b], weight is not None)
                for j in range(width):
                    state[BOUND + j] = by_y[b, q, k + j]
                _share(state, floor)
                for j in range(width):
                    by_tau[number, q, k + j] += state[TAIL + j]
                    by_delta[number, q, k + j] -= state[TAILS + j]
                    if ridge is not None:
                        by_ridge[b, q, k + j] = state[RIDGE + j]
                _add(bends, pulls, of_x, of_weight, state, counts[b], q == 0, weight is not None)
            for i in range(counts[b]):
                for j in range(width):
                    by_x[begins[b] + i, k + j] = of_x[i * BLOCK + j]
                    if weight is not None:
                        by_weight[begins[b] + i, k + j] = of_weight[i * BLOCK + j]


def solve(
    x: Tensor, index: Tensor, counts: Tensor, tau: Tensor, delta: Tensor, weight: Tensor | None,
    ridge: Tensor | None, max_passes: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`naive.solve`, in loops."""
    weight = None if weight is None else weight.index_select(1, heads_of(weight, x.shape[1]))
    begins = torch.searchsorted(index, torch.arange(counts.shape[0]))
    y = x.new_empty(counts.shape[0], *tau.shape)
    error, passes = torch.empty_like(y), counts.new_zeros(-(-x.shape[1] // BLOCK), y.shape[0])
    given = x, begins, counts, tau, delta, weight, ridge, max_passes, y, error, passes
    run(_solve, ranges_of(counts), x.shape[1], *given)
    return y, error, passes.amax(0)


def adjoint(
    by_y: Tensor, saved: Sequence[Any], floor: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """`naive.adjoint`, in loops; sums over sets are taken in the order of the ranges."""
    x, index, counts, tau, delta, weight, ridge, y = saved
    begins, ranges = torch.searchsorted(index, torch.arange(counts.shape[0])), ranges_of(counts)
    by_x, by_tau = torch.zeros_like(x), tau.new_zeros(len(ranges), *tau.shape)
    by_delta, by_weight = torch.zeros_like(by_tau), None
    if weight is not None:
        of_features = heads_of(weight, x.shape[1])
        by_heads, weight = torch.zeros_like(weight), weight.index_select(1, of_features)
        by_weight = torch.zeros_like(weight)
    by_ridge = None if ridge is None else torch.zeros_like(ridge)
    found = by_x, by_tau, by_delta, by_weight, by_ridge
    given = by_y.contiguous(), x, begins, counts, tau, delta, weight, ridge, y, np.float32(floor)
    run(_adjoint, ranges, x.shape[1], *given, *found)
    if by_weight is not None:
        by_weight = by_heads.index_add(1, of_features, by_weight)
    return by_x, by_tau.sum(0), by_delta.sum(0), by_weight, by_ridge
