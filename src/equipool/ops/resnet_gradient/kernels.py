"""Triton kernels for the memory-bound parts between the matrix products.

Elements are in set order. A *tile* is a run of elements of one set; kernels that sum over sets take
a tile each and write its sum, and `reduce_tiles` adds the tiles of each set in order: no atomics,
the same result every time. Everything is computed in float32; what lies in memory may be shorter.

The notation is that of `torch.py`. `SIZE` is a layer's size, `WIDTH` the columns set aside for
it, which is a multiple of the alignment, and `BLOCK` the next power of two.
"""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl

# The interpreter takes a sum of its own quickly, and one that is written out very slowly.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _tanh(t):
    return 1 - tl.fdiv(2.0, 1 + tl.exp(2 * t))


@triton.jit
def _mean(values, SIZE: tl.constexpr):
    return tl.sum(values, axis=1, keep_dims=True) / SIZE


@triton.jit
def _add_two(a, b, a_more, b_more):
    return a + a_more, b + b_more


@triton.jit
def _add_five(a, b, c, d, e, a_more, b_more, c_more, d_more, e_more):
    return a + a_more, b + b_more, c + c_more, d + d_more, e + e_more


@triton.jit
def _means(a, b, SIZE: tl.constexpr):
    """Means of two tensors' rows in one go, as a sum across warps waits for them all."""
    if INTERPRETED:
        a, b = tl.sum(a, 1), tl.sum(b, 1)
    else:
        a, b = tl.reduce((a, b), 1, _add_two)
    return a[:, None] / SIZE, b[:, None] / SIZE


@triton.jit
def _sums_of_five(a, b, c, d, e):
    """Sums of five rows in one go."""
    if INTERPRETED:
        return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0), tl.sum(d, 0), tl.sum(e, 0)
    return tl.reduce((a, b, c, d, e), 0, _add_five)


@triton.jit
def _sums_of_two(a, b):
    if INTERPRETED:
        return tl.sum(a, 0), tl.sum(b, 0)
    return tl.reduce((a, b), 0, _add_two)


@triton.jit(do_not_specialize=["num_elements"])
def activate(
    x_part, y_part, y_part_dot, live_rows, index, products, gamma, beta, out, stats,
    num_elements, x_stride, y_stride, products_stride, out_stride, column, products_column, eps,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_PRODUCTS: tl.constexpr, HAS_DOT: tl.constexpr,
):  # fmt: skip
    """`h` of a hidden layer; with a direction `h_dot` in the first rows of out, and `h` after.
    Where the direction is zero, `u` is read as zero: it may be non-finite.

    The means that the adjoint needs again are kept: `stats [N, 4]` holds the mean of `u`, `rstd`,
    the mean of `u_dot` and that of `xhat * u_dot`.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = rows < num_elements
    mask = inside[:, None] & (cols < SIZE)[None, :]
    wide = inside[:, None] & (cols < WIDTH)[None, :]
    rows = rows.to(tl.int64)
    sets = tl.load(index + rows, mask=inside, other=0)
    if HAS_DOT:
        mask = mask & (tl.load(live_rows + sets, mask=inside, other=0.0) > 0)[:, None]
    at_y = sets[:, None] * y_stride + column + cols[None, :]
    at_products = rows[:, None] * products_stride + products_column + cols[None, :]
    at_x = rows[:, None] * x_stride + column + cols[None, :]
    u = tl.load(x_part + at_x, mask=mask, other=0.0).to(tl.float32)
    u += tl.load(y_part + at_y, mask=mask, other=0.0)
    offset = num_elements.to(tl.int64) if HAS_DOT else 0
    if HAS_PRODUCTS:
        below = products + offset * products_stride
        u += tl.load(below + at_products, mask=mask, other=0.0).to(tl.float32)
    at_stats = stats + rows[:, None] * 4
    if HAS_DOT:
        u_dot = tl.load(y_part_dot + at_y, mask=mask, other=0.0)
        if HAS_PRODUCTS:
            u_dot += tl.load(products + at_products, mask=mask, other=0.0).to(tl.float32)
        mean, mean_dot = _means(u, u_dot, SIZE)
        xhat = tl.where(mask, u - mean, 0.0)
        variance, along = _means(xhat * xhat, xhat * u_dot, SIZE)
    else:
        mean = _mean(u, SIZE)
        xhat = tl.where(mask, u - mean, 0.0)
        variance = _mean(xhat * xhat, SIZE)
    rstd = 1.0 / tl.sqrt(variance + eps)
    xhat *= rstd
    tl.store(at_stats, mean, mask=inside[:, None])
    tl.store(at_stats + 1, rstd, mask=inside[:, None])
    scale = tl.load(gamma + cols, mask=cols < SIZE, other=0.0)[None, :]
    shift = tl.load(beta + cols, mask=cols < SIZE, other=0.0)[None, :]
    h = _tanh(scale * xhat + shift)
    at_out = rows[:, None] * out_stride + cols[None, :]
    tl.store(out + offset * out_stride + at_out, h.to(out.dtype.element_ty), mask=wide)
    if HAS_DOT:
        along *= rstd
        tl.store(at_stats + 2, mean_dot, mask=inside[:, None])
        tl.store(at_stats + 3, along, mask=inside[:, None])
        h_dot = scale * rstd * (u_dot - mean_dot - xhat * along) * (1 - h * h)
        tl.store(out + at_out, h_dot.to(out.dtype.element_ty), mask=wide)


@triton.jit(do_not_specialize=["num_elements"])
def last_layer(
    x_part, y_part, y_part_dot, live_rows, index, products, tile_start, tile_end, adjoints, sums,
    by_x_part, num_elements, x_stride, y_stride, products_stride, adjoints_stride, sums_stride,
    by_u_sums, column, products_column, scale,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_PRODUCTS: tl.constexpr, HAS_DOT: tl.constexpr, HAS_SHARED: tl.constexpr,
):  # fmt: skip
    """`delta` of the last layer and its sum over the tile; with a direction also `by_u`, which is
    added to `by_x_part` where there is one."""
    tile = tl.program_id(0).to(tl.int64)
    start, end = tl.load(tile_start + tile), tl.load(tile_end + tile)
    cols = tl.arange(0, BLOCK)
    live = (cols < SIZE)[None, :]
    offset = num_elements.to(tl.int64) if HAS_DOT else 0
    own = tl.load(index + start)  # a tile lies within one set
    at_y = own * y_stride + column + cols
    y_here = tl.load(y_part + at_y, mask=cols < SIZE, other=0.0)[None, :]
    if HAS_DOT:
        live = live & (tl.load(live_rows + own + 0 * cols) > 0)[None, :]
        y_dot_here = tl.load(y_part_dot + at_y, mask=cols < SIZE, other=0.0)[None, :]
    delta_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    by_u_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(start, end, ROWS):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = rows < end
        mask = inside[:, None] & live
        wide = inside[:, None] & (cols < WIDTH)[None, :]
        at_x = rows[:, None] * x_stride + column + cols[None, :]
        at_products = rows[:, None] * products_stride + products_column + cols[None, :]
        at_adjoints = rows[:, None] * adjoints_stride + products_column + cols[None, :]
        u = tl.load(x_part + at_x, mask=mask, other=0.0).to(tl.float32)
        u += tl.where(mask, y_here, 0.0)
        if HAS_PRODUCTS:
            below = products + offset * products_stride
            u += tl.load(below + at_products, mask=mask, other=0.0).to(tl.float32)
        delta = scale * u
        delta_sum += delta
        if HAS_PRODUCTS:
            tl.store(adjoints + at_adjoints, delta.to(adjoints.dtype.element_ty), mask=wide)
        if HAS_DOT:
            u_dot = tl.where(mask, y_dot_here, 0.0)
            if HAS_PRODUCTS:
                u_dot += tl.load(products + at_products, mask=mask, other=0.0).to(tl.float32)
            by_u = scale * u_dot
            by_u_sum += by_u
            if HAS_PRODUCTS:
                after = adjoints + offset * adjoints_stride
                tl.store(after + at_adjoints, by_u.to(adjoints.dtype.element_ty), mask=wide)
            if HAS_SHARED:
                by_x = tl.load(by_x_part + at_x, mask=mask, other=0.0)
                tl.store(by_x_part + at_x, by_x + by_u, mask=mask)
    at_sums = sums + tile * sums_stride + column + cols
    tl.store(at_sums, tl.sum(delta_sum, axis=0), mask=cols < WIDTH)
    if HAS_DOT:
        tl.store(at_sums + by_u_sums, tl.sum(by_u_sum, axis=0), mask=cols < WIDTH)


@triton.jit
def hidden_adjoint(
    x_part, y_part, index, products, stats, h_in, by_h, gamma, tile_start, tile_end, adjoints, sums,
    x_stride, y_stride, products_stride, by_h_stride, adjoints_stride, sums_stride,
    column, products_column,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, HAS_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """`delta` of a hidden layer from `by_h`, and its sum over the tile. The first layer's `delta`
    is wanted in the sum alone, and is the one without products."""
    tile = tl.program_id(0).to(tl.int64)
    start, end = tl.load(tile_start + tile), tl.load(tile_end + tile)
    cols = tl.arange(0, BLOCK)
    live, wide = cols < SIZE, cols < WIDTH
    scale = tl.load(gamma + cols, mask=live, other=0.0)
    at_y = tl.load(index + start) * y_stride + column + cols  # a tile lies within one set
    y_here = tl.load(y_part + at_y, mask=live, other=0.0)
    delta_sum = tl.zeros([BLOCK], tl.float32)
    for row in range(start, end):
        u = tl.load(x_part + row * x_stride + column + cols, mask=live, other=0.0).to(tl.float32)
        u += y_here
        if HAS_PRODUCTS:
            at_products = row * products_stride + products_column + cols
            u += tl.load(products + at_products, mask=live, other=0.0).to(tl.float32)
        mean, rstd = tl.load(stats + row * 4), tl.load(stats + row * 4 + 1)
        xhat = tl.where(live, (u - mean) * rstd, 0.0)
        h = tl.load(h_in + row * by_h_stride + cols, mask=live, other=0.0).to(tl.float32)
        by_h_here = tl.load(by_h + row * by_h_stride + cols, mask=live, other=0.0).to(tl.float32)
        by_xhat = scale * by_h_here * (1 - h * h)
        total, across = _sums_of_two(by_xhat, by_xhat * xhat)
        delta = tl.where(live, rstd * (by_xhat - total / SIZE - xhat * (across / SIZE)), 0.0)
        delta_sum += delta
        if HAS_PRODUCTS:
            at_adjoints = row * adjoints_stride + products_column + cols
            tl.store(adjoints + at_adjoints, delta.to(adjoints.dtype.element_ty), mask=wide)
    tl.store(sums + tile * sums_stride + column + cols, delta_sum, mask=wide)


@triton.jit(do_not_specialize=["num_elements"])
def hidden_adjoints(
    x_part, y_part, y_part_dot, live_rows, index, products, stats, hs, by_hs, gamma,
    tile_start, tile_end, adjoints, sums, by_x_part, by_norm,
    num_elements, x_stride, y_stride, products_stride, by_hs_stride, adjoints_stride, sums_stride,
    by_u_sums, column, products_column,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, HAS_PRODUCTS: tl.constexpr,
    HAS_SHARED: tl.constexpr,
):  # fmt: skip
    """`delta` and `by_u` of a hidden layer, and their sums over the tile. What is shared by the
    steps of a solve is added to what earlier steps gave: `by_u` to `by_x_part`, and the tile's part
    of the cotangents of gamma and beta to `by_norm`.

    Of `products`, `hs`, `by_hs` and `adjoints` the first rows belong to the direction: products of
    `h_dot`, `h_dot`, its cotangent, and `delta`.
    """
    tile = tl.program_id(0).to(tl.int64)
    start, end = tl.load(tile_start + tile), tl.load(tile_end + tile)
    cols = tl.arange(0, BLOCK)
    live, wide = cols < SIZE, cols < WIDTH
    scale = tl.load(gamma + cols, mask=live, other=0.0)
    offset = num_elements.to(tl.int64)
    own = tl.load(index + start)  # a tile lies within one set
    read = live & (tl.load(live_rows + own + 0 * cols) > 0)
    at_y = own * y_stride + column + cols
    y_here = tl.load(y_part + at_y, mask=live, other=0.0)
    y_dot_here = tl.load(y_part_dot + at_y, mask=live, other=0.0)
    delta_sum = tl.zeros([BLOCK], tl.float32)
    by_u_sum = tl.zeros([BLOCK], tl.float32)
    gamma_sum = tl.zeros([BLOCK], tl.float32)
    beta_sum = tl.zeros([BLOCK], tl.float32)
    for row in range(start, end):
        at_x = row * x_stride + column + cols
        u = tl.load(x_part + at_x, mask=read, other=0.0).to(tl.float32) + y_here
        u_dot = y_dot_here
        if HAS_SHARED:
            by_x = tl.load(by_x_part + at_x, mask=live, other=0.0)
        if HAS_PRODUCTS:
            at_dot = products + row * products_stride + products_column + cols
            at_point = at_dot + offset * products_stride
            u += tl.load(at_point, mask=read, other=0.0).to(tl.float32)
            u_dot += tl.load(at_dot, mask=read, other=0.0).to(tl.float32)
        at_stats = stats + row * 4
        mean, rstd = tl.load(at_stats), tl.load(at_stats + 1)
        mean_dot, along = tl.load(at_stats + 2), tl.load(at_stats + 3)
        xhat = tl.where(live, (u - mean) * rstd, 0.0)
        xhat_dot = tl.where(live, rstd * (u_dot - mean_dot - xhat * along), 0.0)
        at_dot, at_point = row * by_hs_stride + cols, (offset + row) * by_hs_stride + cols
        h = tl.load(hs + at_point, mask=live, other=0.0).to(tl.float32)
        by_h_dot = tl.load(by_hs + at_dot, mask=live, other=0.0).to(tl.float32)
        by_h = tl.load(by_hs + at_point, mask=live, other=0.0).to(tl.float32)
        slope = 1 - h * h
        by_t_dot = by_h_dot * slope
        by_t = (by_h - 2 * h * scale * xhat_dot * by_h_dot) * slope
        gamma_sum += by_t * xhat + by_t_dot * xhat_dot
        beta_sum += by_t
        by_xhat_dot = scale * by_t_dot
        by_xhat = scale * by_t
        mean_by_dot, across, by_rstd, mean_by, across_by = _sums_of_five(
            by_xhat_dot, by_xhat_dot * xhat, by_xhat_dot * xhat_dot, by_xhat, by_xhat * xhat
        )
        mean_by_dot, across, by_rstd = mean_by_dot / SIZE, across / SIZE, by_rstd / SIZE
        delta = tl.where(live, rstd * (by_xhat_dot - mean_by_dot - xhat * across), 0.0)
        # xhat_dot reads xhat as well; the means of what that adds are known from the others.
        by_xhat -= rstd * (by_xhat_dot * along + across * u_dot)
        mean_by = mean_by / SIZE - rstd * (mean_by_dot * along + across * mean_dot)
        across_by = across_by / SIZE - 2 * rstd * across * along
        by_u = tl.where(live, rstd * (by_xhat - mean_by - xhat * (across_by + by_rstd)), 0.0)
        delta_sum += delta
        by_u_sum += by_u
        if HAS_SHARED:
            tl.store(by_x_part + at_x, by_x + by_u, mask=live)
        if HAS_PRODUCTS:
            at_dot = adjoints + row * adjoints_stride + products_column + cols
            tl.store(at_dot, delta.to(adjoints.dtype.element_ty), mask=wide)
            at_point = at_dot + offset * adjoints_stride
            tl.store(at_point, by_u.to(adjoints.dtype.element_ty), mask=wide)
    at_sums = sums + tile * sums_stride + column + cols
    tl.store(at_sums, delta_sum, mask=wide)
    tl.store(at_sums + by_u_sums, by_u_sum, mask=wide)
    if HAS_SHARED:
        at_norm = by_norm + tile * 2 * SIZE + cols
        tl.store(at_norm, tl.load(at_norm, mask=live) + gamma_sum, mask=live)
        at_norm += SIZE
        tl.store(at_norm, tl.load(at_norm, mask=live) + beta_sum, mask=live)


@triton.jit
def reduce_tiles(
    sums, first_tile, out, width, sums_stride, out_stride, num_rows, BLOCK: tl.constexpr
):  # fmt: skip
    """Add the sums of each set's tiles, in order. Where a tile has several sums side by side, of
    `width` each, they end up below each other, `[several * num_rows, width]`."""
    row = tl.program_id(0).to(tl.int64)
    which = tl.program_id(2).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < width
    total = tl.zeros([BLOCK], tl.float32)
    for tile in range(tl.load(first_tile + row), tl.load(first_tile + row + 1)):
        at_sums = sums + tile * sums_stride + which * width + cols
        total += tl.load(at_sums, mask=mask, other=0.0)
    at_out = out + (which * num_rows + row) * out_stride + cols
    tl.store(at_out, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def stack_points(
    direction, y, points, live_rows, num_rows, width, points_stride, BLOCK: tl.constexpr
):  # fmt: skip
    """The direction in the first rows of points, y in the others, or zero where the direction is:
    a row that is left out of the loss may be non-finite."""
    row = tl.program_id(0).to(tl.int64)
    found = tl.zeros([BLOCK], tl.int32)
    for first in range(0, width, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        by = tl.load(direction + row * width + cols, mask=cols < width, other=0.0)
        found += (by != 0).to(tl.int32)
    live = tl.sum(found, axis=0)
    tl.store(live_rows + row, live.to(tl.float32))
    kind = points.dtype.element_ty
    for first in range(0, width, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        mask = cols < width
        by = tl.load(direction + row * width + cols, mask=mask, other=0.0)
        here = tl.where(live > 0, tl.load(y + row * width + cols, mask=mask, other=0.0), 0.0)
        tl.store(points + row * points_stride + cols, by.to(kind), mask=mask)
        tl.store(points + (num_rows + row) * points_stride + cols, here.to(kind), mask=mask)


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
def cut_tiles(index, start, end, first, num_elements, num_rows, size, BLOCK: tl.constexpr):
    """The tiles of one row; one program more than there are rows marks where the last one's end."""
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
