"""The gradient of an energy from the gradients of its two parts, for every row at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipool.ops.availability import kernels_serve
from equipool.ops.derivatives import is_plain_backward, scaled


def combine(
    gradient: Tensor, weight: Tensor, y: Tensor, y_weight: Tensor, factor: Tensor
) -> Tensor:
    """`weight * gradient + y_weight * factor * y`. A row whose derivative is zero contributes
    nothing to that by the factor, even if it is not finite.

    The rows, gradient and y, are `[num_rows, K]`; their weights, which are not differentiated,
    `[num_rows, 1]`; the factor is a scalar.
    """
    if kernels_serve(y):
        return _Combine.apply(gradient.contiguous(), weight, y.contiguous(), y_weight, factor)
    return torch.addcmul(weight * gradient, y_weight, scaled(factor, y))


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, weight: Tensor, y: Tensor, y_weight: Tensor, factor: Tensor
    ) -> Tensor:
        from equipool.ops import kernels

        out = torch.empty_like(y)
        kernels.combine[kernels.grid(y)](
            gradient, weight, y, y_weight, factor, out, y.numel(), y.shape[-1], BLOCK=kernels.BLOCK
        )
        ctx.save_for_backward(weight, y, y_weight, factor)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, by_out: Tensor | None) -> tuple[Tensor | None, ...]:
        from equipool.ops import kernels

        if by_out is None:  # nothing depends on it
            return (None,) * 5
        weight, y, y_weight, factor = ctx.saved_tensors
        if is_plain_backward(by_out):
            by_factor = (by_out * y_weight * y.nan_to_num(0.0, 0.0, 0.0)).sum()
            return by_out * weight, None, by_out * y_weight * factor, None, by_factor
        grid = kernels.grid(y)
        by_gradient, by_y = torch.empty_like(y), torch.empty_like(y)
        by_factor = y.new_empty(grid[0])
        kernels.combine_backward[grid](
            by_out.contiguous(), weight, y, y_weight, factor, by_gradient, by_y, by_factor,
            y.numel(), y.shape[-1], BLOCK=kernels.BLOCK,
        )  # fmt: skip
        return by_gradient, None, by_y, None, kernels.total(by_factor).to(factor.dtype)
