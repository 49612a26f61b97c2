"""Sums over neighbours that lie side by side, and their adjoint.

On a GPU, adding rows at random places (`index_add`, and the derivative of `index_select`) is done
in an order that changes from run to run, and with it the last digits. The bonds and atoms of a
batch are in order, so that every sum here is one over a segment: the same digits every time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def segment_sum(values: Tensor, ptr: Tensor) -> Tensor:
    """Sum the rows `ptr[i]:ptr[i + 1]` for every i, in float32 at least: `[N, C] -> [n, C]`. Rows
    behind the last offset belong to no segment.

    Example:
        >>> segment_sum(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 2]))
        tensor([[3.],
                [0.]])
    """
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    return torch.segment_reduce(wide, "sum", offsets=ptr, axis=0, unsafe=True)


def spread(rows: Tensor, index: Tensor, ptr: Tensor, order: Tensor | None = None) -> Tensor:
    """Give every element the row of its segment, `rows[index]`: `[n, C] -> [N, C]`.

    Args:
        rows: of the segments.
        index: segment of each element, `[N]`; any row for elements that belong to none, which pass
            no gradient back.
        ptr: where each segment's elements begin and end, `[n + 1]`.
        order: the elements in the order of their segments, `[N]`, where they do not lie in it.
    """
    return _Spread.apply(rows, index, ptr, order)


class _Spread(torch.autograd.Function):
    """`rows[index]`, whose derivative is a segment sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, ptr: Tensor, order: Tensor | None) -> Tensor:
        ctx.save_for_backward(ptr, order)
        return rows.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        ptr, order = ctx.saved_tensors
        if order is not None:
            gradient = gradient.index_select(0, order)
        return segment_sum(gradient, ptr).to(gradient.dtype), None, None, None
