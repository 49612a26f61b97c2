"""The Triton kernel of `Guard`: launches dominate the step of a small network."""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def judge(
    norms, num_norms, values, average, count, counter, rows, length, out,
    FACTOR: tl.constexpr, CLIP_NORM: tl.constexpr, DECAY: tl.constexpr, SETTLED: tl.constexpr,
    LARGEST: tl.constexpr, NUM_VALUES: tl.constexpr, NUM_LOSSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Runs as one program. `values` is a tuple of pointers: the losses, then the metrics."""
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(0, num_norms, BLOCK):
        at = start + tl.arange(0, BLOCK)
        some = tl.load(norms + at, mask=at < num_norms, other=0.0).to(tl.float64)
        squares += some * some
    norm = tl.sqrt(tl.sum(squares, axis=0)).to(tl.float32)

    before, num_finite = tl.load(average), tl.load(count)
    finite = norm <= LARGEST
    limit = tl.zeros_like(norm) + LARGEST
    if FACTOR is not None:
        trusted = (num_finite >= SETTLED) & (before > 0)
        limit = tl.where(trusted, tl.minimum(FACTOR * before, LARGEST), LARGEST)
    skipped = tl.where(norm <= limit, 0.0, 1.0)  # false for NaN

    num_finite += finite.to(tl.int64)
    weight = tl.maximum(1.0 / tl.maximum(num_finite, 1).to(tl.float32), 1 - DECAY)
    moved = before + weight * (tl.minimum(norm, limit) - before)
    tl.store(average, tl.where(finite, moved, before))
    tl.store(count, num_finite)
    tl.store(out, skipped)
    if CLIP_NORM is not None:
        tl.store(out + 1, tl.maximum((norm + 1e-6) / CLIP_NORM, 1.0))

    step = tl.load(counter)
    row = rows + step % length * (NUM_VALUES + 2)
    for i in tl.static_range(NUM_VALUES):
        value = tl.load(values[i]).to(tl.float32)
        if i < NUM_LOSSES:
            tl.store(row + i, value)
        else:
            tl.store(row + i + 2, value)
    tl.store(row + NUM_LOSSES, norm)
    tl.store(row + NUM_LOSSES + 1, skipped)
    tl.store(counter, step + 1)
