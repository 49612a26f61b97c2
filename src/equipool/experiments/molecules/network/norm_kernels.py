"""Triton kernels of `norm.py`: two passes over memory in each direction, the first for sums.

A program handles a run of rows and some columns. Every program of the second pass adds up the sums
of the runs itself, always in the same order.
"""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

RUNS = 32
TILE = {"ROWS": 32, "COLUMNS": 64}


def launch(x: Tensor) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """The grid, and the size arguments of every kernel: rows, columns, and rows per run."""
    num_rows, num_columns = x.shape
    length = max(-(-num_rows // RUNS), 1)
    return (RUNS, -(-num_columns // TILE["COLUMNS"])), (num_rows, num_columns, length)


@triton.jit
def _place(num_rows, num_columns, length, COLUMNS: tl.constexpr):
    """The start and end row of the program's run, its columns, and which of them exist."""
    start = tl.program_id(0) * length
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return start, tl.minimum(start + length, num_rows), column, column < num_columns


@triton.jit
def _tile(real, first, end, num_columns, column, inside, ROWS: tl.constexpr):
    """The offsets of a tile's numbers, which of them exist, and which are in real rows."""
    row = first + tl.arange(0, ROWS)
    at = row[:, None].to(tl.int64) * num_columns + column[None, :]
    is_real = tl.load(real + row, mask=row < end, other=0.0) > 0
    return at, (row < end)[:, None] & inside[None, :], is_real[:, None] & inside[None, :]


@triton.jit
def _of_runs(sums, which, num_columns, column, inside, KINDS: tl.constexpr, RUNS: tl.constexpr):
    """One of the sums of all runs, `[RUNS, COLUMNS]` of `sums [RUNS, KINDS, C]`."""
    row = tl.arange(0, RUNS) * KINDS + which
    at = row[:, None] * num_columns + column[None, :]
    return tl.load(sums + at, mask=inside[None, :], other=0.0)


@triton.jit
def _relu_passes(gradient, tile, mean, scale, offset, RELU: tl.constexpr):
    """The gradient by what a relu was given, `(tile - mean) * scale + offset`."""
    if RELU:
        value = (tile - mean[None, :]) * scale[None, :] + offset[None, :]
        gradient = tl.where(value <= 0, 0.0, gradient)
    return gradient


@triton.jit
def moments(
    x, real, sums, num_rows, num_columns, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The number of real rows, their mean and the sum of squared deviations of each run:
    `sums [RUNS, 3, C]`. Parts of a run are merged by the formulas of Chan, Golub and LeVeque;
    a difference of large squares would lose digits."""
    start, end, column, inside = _place(num_rows, num_columns, length, COLUMNS)
    count = tl.zeros([COLUMNS], tl.float32)
    mean = tl.zeros([COLUMNS], tl.float32)
    squares = tl.zeros([COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        at, _, kept = _tile(real, first, end, num_columns, column, inside, ROWS)
        tile = tl.load(x + at, mask=kept, other=0.0).to(tl.float32)
        here = tl.sum(kept.to(tl.float32), axis=0)
        mean_here = tl.sum(tile, axis=0) / tl.maximum(here, 1.0)
        away = tl.where(kept, tile - mean_here[None, :], 0.0)
        shift = mean_here - mean
        share = here / tl.maximum(count + here, 1.0)
        squares += tl.sum(away * away, axis=0) + shift * shift * count * share
        mean += shift * share
        count += here
    sums += tl.program_id(0) * 3 * num_columns + column
    tl.store(sums, count, mask=inside)
    tl.store(sums + num_columns, mean, mask=inside)
    tl.store(sums + 2 * num_columns, squares, mask=inside)


@triton.jit
def normalize(
    x, real, sums, weight, bias, y, statistics, running_mean, running_var, num_batches,
    num_rows, num_columns, length, eps, momentum,
    RELU: tl.constexpr, RUNS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalise the rows, with a relu if asked for. The programs of the first run also store mean,
    1 / deviation and 1 / number in `statistics [3, C]` and update the running statistics."""
    start, end, column, inside = _place(num_rows, num_columns, length, COLUMNS)
    counts = _of_runs(sums, 0, num_columns, column, inside, 3, RUNS)
    means = _of_runs(sums, 1, num_columns, column, inside, 3, RUNS)
    squares = _of_runs(sums, 2, num_columns, column, inside, 3, RUNS)
    count = tl.sum(counts, axis=0)
    share = 1.0 / tl.maximum(count, 1.0)
    mean = tl.sum(counts * means, axis=0) * share
    away = means - mean[None, :]
    square = tl.sum(squares + counts * away * away, axis=0)
    inverse = 1.0 / tl.sqrt(square * share + eps)

    scale = tl.load(weight + column, mask=inside, other=0.0) * inverse
    offset = tl.load(bias + column, mask=inside, other=0.0)
    for first in range(start, end, ROWS):
        at, there, kept = _tile(real, first, end, num_columns, column, inside, ROWS)
        tile = tl.load(x + at, mask=kept, other=0.0).to(tl.float32)
        away = tl.where(kept, tile - mean[None, :], 0.0)
        value = away * scale[None, :] + offset[None, :]
        if RELU:
            value = tl.where(value <= 0, 0.0, value)  # keeps NaN, unlike a maximum
        tl.store(y + at, value.to(y.dtype.element_ty), mask=there)

    if tl.program_id(0) == 0:
        tl.store(statistics + column, mean, mask=inside)
        tl.store(statistics + num_columns + column, inverse, mask=inside)
        tl.store(statistics + 2 * num_columns + column, share, mask=inside)
        unbiased = square / tl.maximum(count - 1.0, 1.0)
        step = tl.where(count >= 2.0, momentum, 0.0)
        _move(running_mean + column, mean, step, inside)
        _move(running_var + column, unbiased, step, inside)
        if tl.program_id(1) == 0:
            tl.store(num_batches, tl.load(num_batches) + 1)


@triton.jit
def _move(running, value, step, inside):
    before = tl.load(running, mask=inside, other=0.0).to(tl.float32)
    tl.store(running, (before + step * (value - before)).to(running.dtype.element_ty), mask=inside)


@triton.jit
def adjoint_sums(
    gradient, x, real, statistics, sums, weight, bias, num_rows, num_columns, length,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums over each run's real rows of the gradient, and of the gradient times the normalised
    rows: `sums [RUNS, 2, C]`."""
    start, end, column, inside = _place(num_rows, num_columns, length, COLUMNS)
    mean = tl.load(statistics + column, mask=inside, other=0.0)
    inverse = tl.load(statistics + num_columns + column, mask=inside, other=0.0)
    scale = tl.load(weight + column, mask=inside, other=0.0) * inverse
    offset = tl.load(bias + column, mask=inside, other=0.0)
    total = tl.zeros([COLUMNS], tl.float32)
    along = tl.zeros([COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        at, _, kept = _tile(real, first, end, num_columns, column, inside, ROWS)
        by_y = tl.load(gradient + at, mask=kept, other=0.0).to(tl.float32)
        tile = tl.load(x + at, mask=kept, other=0.0).to(tl.float32)
        by_y = _relu_passes(by_y, tile, mean, scale, offset, RELU)
        total += tl.sum(by_y, axis=0)
        along += tl.sum(by_y * (tile - mean[None, :]), axis=0)
    sums += tl.program_id(0) * 2 * num_columns + column
    tl.store(sums, total, mask=inside)
    tl.store(sums + num_columns, along * inverse, mask=inside)


@triton.jit
def adjoint(
    gradient, x, real, statistics, sums, weight, bias, by_x, by_weight, by_bias,
    num_rows, num_columns, length,
    RELU: tl.constexpr, RUNS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The derivatives. Those of padding rows are zero; the programs of the first run write those of
    weight and bias."""
    start, end, column, inside = _place(num_rows, num_columns, length, COLUMNS)
    mean = tl.load(statistics + column, mask=inside, other=0.0)
    inverse = tl.load(statistics + num_columns + column, mask=inside, other=0.0)
    share = tl.load(statistics + 2 * num_columns + column, mask=inside, other=0.0)
    total = tl.sum(_of_runs(sums, 0, num_columns, column, inside, 2, RUNS), axis=0)
    along = tl.sum(_of_runs(sums, 1, num_columns, column, inside, 2, RUNS), axis=0)
    if tl.program_id(0) == 0:
        tl.store(by_bias + column, total, mask=inside)
        tl.store(by_weight + column, along, mask=inside)

    scale = tl.load(weight + column, mask=inside, other=0.0) * inverse
    offset = tl.load(bias + column, mask=inside, other=0.0)
    for first in range(start, end, ROWS):
        at, there, kept = _tile(real, first, end, num_columns, column, inside, ROWS)
        by_y = tl.load(gradient + at, mask=kept, other=0.0).to(tl.float32)
        tile = tl.load(x + at, mask=kept, other=0.0).to(tl.float32)
        by_y = _relu_passes(by_y, tile, mean, scale, offset, RELU)
        normal = (tile - mean[None, :]) * inverse[None, :]
        value = scale[None, :] * (
            by_y - (share * total)[None, :] - normal * (share * along)[None, :]
        )
        tl.store(by_x + at, tl.where(kept, value, 0.0).to(by_x.dtype.element_ty), mask=there)
