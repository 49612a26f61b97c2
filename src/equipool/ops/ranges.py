"""Free numbers mapped into a range, with a given value at 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipool.ops.derivatives import is_plain_backward, plain_adjoint
from equipool.ops.execution import kernels_serve


def positive(origin: Tensor, raw: Tensor) -> Tensor:
    r"""A positive number, $v = v_0 \, \mathrm{softplus}(r + c) / \mathrm{softplus}(c)$ where
    $\mathrm{softplus}(c) = v_0$: `origin` exactly at `raw = 0`. The origin, a scalar of raw's
    dtype, is not differentiated."""
    return _serve(_positive, origin, raw)


def fraction(origin: Tensor, raw: Tensor) -> Tensor:
    r"""A number from 0 up to 1, $v = v_0 / (v_0 + (1 - v_0) e^{-r})$: `origin` exactly at
    `raw = 0`. The origin, a scalar of raw's dtype, is not differentiated."""
    return _serve(_fraction, origin, raw)


def _positive(origin: Tensor, raw: Tensor) -> Tensor:
    center = origin + torch.log(-torch.expm1(-origin))
    return origin * (softplus(raw + center) / softplus(center))


def _fraction(origin: Tensor, raw: Tensor) -> Tensor:
    return origin / (origin + (1 - origin) * torch.exp(-raw))


def _serve(plain: Callable[..., Tensor], origin: Tensor, raw: Tensor) -> Tensor:
    if kernels_serve(raw) and raw.dim() == origin.dim() == 0:
        return _Fused.apply(plain, origin, raw)
    return plain(origin, raw)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: Callable[..., Tensor], origin: Tensor, raw: Tensor) -> Tensor:
        from equipool.ops import kernels

        out = torch.empty_like(raw)
        kernels.bring_into_range[(1,)](origin, raw, out, FRACTION=plain is _fraction, num_warps=1)
        ctx.plain = plain
        ctx.save_for_backward(origin, raw)
        return out

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        from equipool.ops import kernels

        origin, raw = ctx.saved_tensors
        if is_plain_backward(by_out):
            return None, None, *plain_adjoint(lambda raw: [ctx.plain(origin, raw)], [raw], [by_out])
        by_raw = torch.empty_like(raw)
        kernels.bring_into_range_backward[(1,)](
            by_out, origin, raw, by_raw, FRACTION=ctx.plain is _fraction, num_warps=1
        )
        return None, None, by_raw
