"""Operations whose backward deliberately differs from autograd's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipool.ops.execution import is_batched, is_exporting, kernels_serve


def is_plain_backward(*by_outputs: Tensor | None) -> bool:
    """Whether a backward pass has to consist of torch operations: it is to be differentiated again,
    or computes a batch of derivatives."""
    return torch.is_grad_enabled() or any(is_batched(by) for by in by_outputs if by is not None)


def plain_adjoint(
    plain: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], by: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Cotangents of the inputs of an operation that is given in torch operations."""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: other paths to the same tensors are not ours, and hooks are not to run here.
        inputs = [t.view_as(t) if recorded else t.detach() for t in inputs]
        inputs = [t if t.requires_grad else t.requires_grad_() for t in inputs]
        pairs = [p for p in zip(plain(*inputs), by, strict=True) if p[1] is not None]
        outputs, by = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, inputs, by, create_graph=recorded, allow_unused=True)


def attach(y: Tensor, *others: Tensor) -> Tensor:
    """y unchanged. Give `others` a zero gradient: DistributedDataParallel stalls on parameters that
    receive none."""
    return _Attach.apply(y, *others) if any(other.requires_grad for other in others) else y


class _Attach(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, *others: Tensor) -> Tensor:
        return y.clone()  # a view could not be changed in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor, ...]:
        return by_y, *(torch.zeros_like(other) for other in ctx.saved_tensors)


# A non-finite set may be left out of the loss. The cotangent of its row is then zero, but zero
# times infinity is NaN, and in a sum over rows it reaches every other set. So no operation that
# sums over rows may multiply by a non-finite number.


def separate(rows: Tensor) -> tuple[Tensor, Tensor | float]:
    """The rows with zeros in place of non-finite numbers, and a constant that adds those again. Of
    the sum, which is the rows, only the finite part has a derivative."""
    if not _may_spread(rows):
        return rows, 0.0
    finite = rows.nan_to_num(0.0, 0.0, 0.0)
    return finite, (rows - finite).detach()


def _may_spread(rows: Tensor) -> bool:
    """Whether a non-finite number could reach other rows in a backward pass. On a CPU,
    checking the values is cheaper than guarding against it. The sum may overflow, which does no
    harm."""
    if is_exporting() or not torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling() or rows.device.type != "cpu" or is_batched(rows):
        return True
    return not math.isfinite(rows.detach().sum())


def scaled(factor: Tensor, rows: Tensor) -> Tensor:
    """`factor * rows`; non-finite numbers add nothing to the factor's cotangent."""
    finite, rest = separate(rows)
    return factor * finite if isinstance(rest, float) else factor * finite + rest


def squared_norms(rows: Tensor) -> Tensor:
    """`[num_rows, K] -> [num_rows]`; a row with a zero cotangent may be non-finite."""
    if kernels_serve(rows):
        return _SquaredNorms.apply(rows.contiguous())
    finite, rest = separate(rows)
    squares = finite.square().sum(-1)
    return squares if isinstance(rest, float) else squares + rest.abs().sum(-1)


class _SquaredNorms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        from equipool.ops import kernels

        out = rows.new_empty(rows.shape[0])
        kernels.squared_norms[(rows.shape[0],)](rows, out, rows.shape[1], BLOCK=kernels.BLOCK)
        ctx.save_for_backward(rows)
        return out

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> Tensor:
        from equipool.ops import kernels

        (rows,) = ctx.saved_tensors
        if is_plain_backward(by_out):
            return 2 * by_out.unsqueeze(-1) * rows.nan_to_num(0.0, 0.0, 0.0)
        by_rows = torch.empty_like(rows)
        kernels.squared_norms_backward[(rows.shape[0],)](
            by_out.contiguous(), rows, by_rows, rows.shape[1], BLOCK=kernels.BLOCK
        )
        return by_rows


def combine(
    gradient: Tensor, weight: Tensor, y: Tensor, y_weight: Tensor, factor: Tensor
) -> Tensor:
    """`weight * gradient + y_weight * factor * y`: the gradient of an energy from those of its two
    parts. A row with a zero cotangent adds nothing to the factor's, even if non-finite.

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
