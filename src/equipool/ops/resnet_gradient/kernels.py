"""Triton kernels for the memory-bound parts between the matrix products.

Elements are in set order. A *tile* is a run of elements of one set; kernels that sum over sets take
a tile each and write its sum, and `reduce_tiles` adds the tiles of each set in order: no atomics,
the same result every time. Everything is computed in float32; what lies in memory may be shorter.

The notation is that of `torch.py`. `SIZE` is a layer's size, `WIDTH` the columns set aside for it,
which is a multiple of the alignment, and `BLOCK` the next power of two.
"""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(t):
    return 2 * tl.sigmoid(2 * t) - 1


@triton.jit
def _mean(values, SIZE: tl.constexpr):
    return tl.sum(values, axis=1, keep_dims=True) / SIZE


@triton.jit
def _normalize(u, mask, eps, SIZE: tl.constexpr):
    """`xhat` and `rstd` of rows; masked columns give 0."""
    centered = tl.where(mask, u - _mean(u, SIZE), 0.0)
    rstd = 1.0 / tl.sqrt(_mean(centered * centered, SIZE) + eps)
    return centered * rstd, rstd


@triton.jit
def _norm_adjoint(by_xhat, xhat, rstd, mask, SIZE: tl.constexpr):
    """The adjoint of the normalisation, which is also its derivative. Masked columns give 0."""
    along = _mean(by_xhat * xhat, SIZE)
    return tl.where(mask, rstd * (by_xhat - _mean(by_xhat, SIZE) - xhat * along), 0.0)


@triton.jit(do_not_specialize=["num_elements"])
def activate(
    x_part, y_part, y_part_dot, index, products, gamma, beta, out,
    num_elements, x_stride, y_stride, products_stride, out_stride, column, products_column, eps,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_PRODUCTS: tl.constexpr, HAS_DOT: tl.constexpr,
):  # fmt: skip
    """`h` of a hidden layer; with a direction `h_dot` in the first rows of out, and `h` after."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = rows < num_elements
    mask = inside[:, None] & (cols < SIZE)[None, :]
    wide = inside[:, None] & (cols < WIDTH)[None, :]
    rows = rows.to(tl.int64)
    sets = tl.load(index + rows, mask=inside, other=0)
    at_y = sets[:, None] * y_stride + column + cols[None, :]
    at_products = rows[:, None] * products_stride + products_column + cols[None, :]
    u = tl.load(x_part + rows[:, None] * x_stride + column + cols[None, :], mask=mask, other=0.0)
    u += tl.load(y_part + at_y, mask=mask, other=0.0)
    offset = num_elements.to(tl.int64) if HAS_DOT else 0
    if HAS_PRODUCTS:
        below = products + offset * products_stride
        u += tl.load(below + at_products, mask=mask, other=0.0).to(tl.float32)
    xhat, rstd = _normalize(u, mask, eps, SIZE)
    scale = tl.load(gamma + cols, mask=cols < SIZE, other=0.0)[None, :]
    shift = tl.load(beta + cols, mask=cols < SIZE, other=0.0)[None, :]
    h = _tanh(scale * xhat + shift)
    at_out = rows[:, None] * out_stride + cols[None, :]
    tl.store(out + offset * out_stride + at_out, h.to(out.dtype.element_ty), mask=wide)
    if HAS_DOT:
        u_dot = tl.load(y_part_dot + at_y, mask=mask, other=0.0)
        if HAS_PRODUCTS:
            u_dot += tl.load(products + at_products, mask=mask, other=0.0).to(tl.float32)
        h_dot = scale * _norm_adjoint(u_dot, xhat, rstd, mask, SIZE) * (1 - h * h)
        tl.store(out + at_out, h_dot.to(out.dtype.element_ty), mask=wide)


@triton.jit(do_not_specialize=["num_elements"])
def last_layer(
    x_part, y_part, y_part_dot, index, products, tile_start, tile_end, adjoints, sums, by_x_part,
    num_elements, x_stride, y_stride, products_stride, adjoints_stride, sums_stride, by_u_sums,
    column, products_column, scale,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_PRODUCTS: tl.constexpr, HAS_DOT: tl.constexpr,
):  # fmt: skip
    """`delta` of the last layer and its sum over the tile; with a direction also `by_u`."""
    tile = tl.program_id(0).to(tl.int64)
    start, end = tl.load(tile_start + tile), tl.load(tile_end + tile)
    cols = tl.arange(0, BLOCK)
    live = (cols < SIZE)[None, :]
    offset = num_elements.to(tl.int64) if HAS_DOT else 0
    delta_sum = tl.zeros([BLOCK], tl.float32)
    by_u_sum = tl.zeros([BLOCK], tl.float32)
    for first in range(start, end, ROWS):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = rows < end
        mask = inside[:, None] & live
        wide = inside[:, None] & (cols < WIDTH)[None, :]
        sets = tl.load(index + rows, mask=inside, other=0)
        at_x = rows[:, None] * x_stride + column + cols[None, :]
        at_y = sets[:, None] * y_stride + column + cols[None, :]
        at_products = rows[:, None] * products_stride + products_column + cols[None, :]
        at_adjoints = rows[:, None] * adjoints_stride + products_column + cols[None, :]
        u = tl.load(x_part + at_x, mask=mask, other=0.0)
        u += tl.load(y_part + at_y, mask=mask, other=0.0)
        if HAS_PRODUCTS:
            below = products + offset * products_stride
            u += tl.load(below + at_products, mask=mask, other=0.0).to(tl.float32)
        delta = scale * u
        delta_sum += tl.sum(delta, axis=0)
        if HAS_PRODUCTS:
            tl.store(adjoints + at_adjoints, delta.to(adjoints.dtype.element_ty), mask=wide)
        if HAS_DOT:
            u_dot = tl.load(y_part_dot + at_y, mask=mask, other=0.0)
            if HAS_PRODUCTS:
                u_dot += tl.load(products + at_products, mask=mask, other=0.0).to(tl.float32)
            by_u = scale * u_dot
            by_u_sum += tl.sum(by_u, axis=0)
            if HAS_PRODUCTS:
                after = adjoints + offset * adjoints_stride
                tl.store(after + at_adjoints, by_u.to(adjoints.dtype.element_ty), mask=wide)
            by_x = tl.load(by_x_part + at_x, mask=mask, other=0.0)
            tl.store(by_x_part + at_x, by_x + by_u, mask=mask)
    at_sums = sums + tile * sums_stride + column + cols
    tl.store(at_sums, delta_sum, mask=cols < WIDTH)
    if HAS_DOT:
        tl.store(at_sums + by_u_sums, by_u_sum, mask=cols < WIDTH)


@triton.jit
def hidden_adjoint(
    x_part, y_part, index, products, by_h, gamma, beta, tile_start, tile_end, adjoints, sums,
    x_stride, y_stride, products_stride, by_h_stride, adjoints_stride, sums_stride,
    column, products_column, eps,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """`delta` of a hidden layer from `by_h`, and its sum over the tile. The first layer's `delta`
    is wanted in the sum alone, and is the one without products."""
    tile = tl.program_id(0).to(tl.int64)
    start, end = tl.load(tile_start + tile), tl.load(tile_end + tile)
    cols = tl.arange(0, BLOCK)
    live = (cols < SIZE)[None, :]
    scale = tl.load(gamma + cols, mask=cols < SIZE, other=0.0)[None, :]
    shift = tl.load(beta + cols, mask=cols < SIZE, other=0.0)[None, :]
    delta_sum = tl.zeros([BLOCK], tl.float32)
    for first in range(start, end, ROWS):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = rows < end
        mask = inside[:, None] & live
        wide = inside[:, None] & (cols < WIDTH)[None, :]
        sets = tl.load(index + rows, mask=inside, other=0)
        at_products = rows[:, None] * products_stride + products_column + cols[None, :]
        at_x = rows[:, None] * x_stride + column + cols[None, :]
        u = tl.load(x_part + at_x, mask=mask, other=0.0)
        u += tl.load(
            y_part + sets[:, None] * y_stride + column + cols[None, :], mask=mask, other=0.0
        )
        if HAS_PRODUCTS:
            u += tl.load(products + at_products, mask=mask, other=0.0).to(tl.float32)
        xhat, rstd = _normalize(u, mask, eps, SIZE)
        h = _tanh(scale * xhat + shift)
        at_by_h = rows[:, None] * by_h_stride + cols[None, :]
        by_t = tl.load(by_h + at_by_h, mask=mask, other=0.0).to(tl.float32) * (1 - h * h)
        delta = _norm_adjoint(scale * by_t, xhat, rstd, mask, SIZE)
        delta_sum += tl.sum(delta, axis=0)
        if HAS_PRODUCTS:
            at_adjoints = rows[:, None] * adjoints_stride + products_column + cols[None, :]
            tl.store(adjoints + at_adjoints, delta.to(adjoints.dtype.element_ty), mask=wide)
    tl.store(sums + tile * sums_stride + column + cols, delta_sum, mask=cols < WIDTH)


@triton.jit(do_not_specialize=["num_elements"])
def hidden_adjoints(
    x_part, y_part, y_part_dot, index, products, by_hs, gamma, beta, tile_start, tile_end,
    adjoints, sums, by_x_part, by_gamma, by_beta,
    num_elements, x_stride, y_stride, products_stride, by_hs_stride, adjoints_stride, sums_stride,
    by_u_sums, column, products_column, eps,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """`delta` and `by_u` of a hidden layer, their sums over the tile, the tile's part of the
    derivatives by gamma and beta. Of `products`, `by_hs` and `adjoints` the first rows belong to
    the direction: products of `h_dot`, the derivative by `h_dot`, and `delta`."""
    tile = tl.program_id(0).to(tl.int64)
    start, end = tl.load(tile_start + tile), tl.load(tile_end + tile)
    cols = tl.arange(0, BLOCK)
    live = (cols < SIZE)[None, :]
    scale = tl.load(gamma + cols, mask=cols < SIZE, other=0.0)[None, :]
    shift = tl.load(beta + cols, mask=cols < SIZE, other=0.0)[None, :]
    offset = num_elements.to(tl.int64)
    delta_sum = tl.zeros([BLOCK], tl.float32)
    by_u_sum = tl.zeros([BLOCK], tl.float32)
    gamma_sum = tl.zeros([BLOCK], tl.float32)
    beta_sum = tl.zeros([BLOCK], tl.float32)
    for first in range(start, end, ROWS):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = rows < end
        mask = inside[:, None] & live
        wide = inside[:, None] & (cols < WIDTH)[None, :]
        sets = tl.load(index + rows, mask=inside, other=0)
        at_x = rows[:, None] * x_stride + column + cols[None, :]
        at_y = sets[:, None] * y_stride + column + cols[None, :]
        at_products = rows[:, None] * products_stride + products_column + cols[None, :]
        u = tl.load(x_part + at_x, mask=mask, other=0.0)
        u += tl.load(y_part + at_y, mask=mask, other=0.0)
        u_dot = tl.load(y_part_dot + at_y, mask=mask, other=0.0)
        if HAS_PRODUCTS:
            below = products + offset * products_stride
            u += tl.load(below + at_products, mask=mask, other=0.0).to(tl.float32)
            u_dot += tl.load(products + at_products, mask=mask, other=0.0).to(tl.float32)
        xhat, rstd = _normalize(u, mask, eps, SIZE)
        h = _tanh(scale * xhat + shift)
        slope = 1 - h * h
        xhat_dot = _norm_adjoint(u_dot, xhat, rstd, mask, SIZE)
        at_by_h = rows[:, None] * by_hs_stride + cols[None, :]
        by_h_dot = tl.load(by_hs + at_by_h, mask=mask, other=0.0).to(tl.float32)
        by_h = tl.load(by_hs + offset * by_hs_stride + at_by_h, mask=mask, other=0.0).to(tl.float32)
        by_t_dot = by_h_dot * slope
        by_t = (by_h - 2 * h * scale * xhat_dot * by_h_dot) * slope
        gamma_sum += tl.sum(by_t * xhat + by_t_dot * xhat_dot, axis=0)
        beta_sum += tl.sum(by_t, axis=0)
        by_xhat_dot = scale * by_t_dot
        delta = _norm_adjoint(by_xhat_dot, xhat, rstd, mask, SIZE)
        along = _mean(xhat * u_dot, SIZE)
        across = _mean(by_xhat_dot * xhat, SIZE)
        by_xhat = scale * by_t - rstd * (by_xhat_dot * along + across * u_dot)
        by_rstd = rstd * _mean(by_xhat_dot * xhat_dot, SIZE)
        by_u = _norm_adjoint(by_xhat, xhat, rstd, mask, SIZE) - xhat * by_rstd
        delta_sum += tl.sum(delta, axis=0)
        by_u_sum += tl.sum(by_u, axis=0)
        by_x = tl.load(by_x_part + at_x, mask=mask, other=0.0)
        tl.store(by_x_part + at_x, by_x + by_u, mask=mask)
        if HAS_PRODUCTS:
            at_adjoints = rows[:, None] * adjoints_stride + products_column + cols[None, :]
            tl.store(adjoints + at_adjoints, delta.to(adjoints.dtype.element_ty), mask=wide)
            after = adjoints + offset * adjoints_stride
            tl.store(after + at_adjoints, by_u.to(adjoints.dtype.element_ty), mask=wide)
    at_sums = sums + tile * sums_stride + column + cols
    tl.store(at_sums, delta_sum, mask=cols < WIDTH)
    tl.store(at_sums + by_u_sums, by_u_sum, mask=cols < WIDTH)
    tl.store(by_gamma + tile * SIZE + cols, gamma_sum, mask=cols < SIZE)
    tl.store(by_beta + tile * SIZE + cols, beta_sum, mask=cols < SIZE)


@triton.jit
def reduce_tiles(
    sums, first_tile, out, width, sums_stride, out_stride, BLOCK: tl.constexpr
):  # fmt: skip
    """Add the sums of each set's tiles, in order."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < width
    total = tl.zeros([BLOCK], tl.float32)
    for tile in range(tl.load(first_tile + row), tl.load(first_tile + row + 1)):
        total += tl.load(sums + tile * sums_stride + cols, mask=mask, other=0.0)
    tl.store(out + row * out_stride + cols, total, mask=mask)
