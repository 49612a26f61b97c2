"""Triton kernels of `ranges.py`.

In float64, which costs nothing with one number: in float32, logarithms near 1 and exponentials near
0 would need care.
"""

# ruff: noqa: N803
from __future__ import annotations

import triton
import triton.language as tl


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
def forward(origin, raw, out, FRACTION: tl.constexpr):
    v0, r = tl.load(origin).to(tl.float64), tl.load(raw).to(tl.float64)
    if FRACTION:
        value = v0 / (v0 + (1 - v0) * tl.exp(-r))
    else:
        c = _center(v0)
        value = v0 * (_softplus(r + c) / _softplus(c))
    tl.store(out, value.to(out.dtype.element_ty))


@triton.jit
def backward(by_out, origin, raw, by_raw, FRACTION: tl.constexpr):
    v0, r = tl.load(origin).to(tl.float64), tl.load(raw).to(tl.float64)
    if FRACTION:
        rest = (1 - v0) * tl.exp(-r)
        slope = v0 / (v0 + rest) / (1 + v0 / rest)
    else:
        c = _center(v0)
        slope = v0 / (1 + tl.exp(-r - c)) / _softplus(c)
    by = tl.load(by_out).to(tl.float64)
    tl.store(by_raw, (by * slope).to(by_raw.dtype.element_ty))
