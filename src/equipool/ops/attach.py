"""Tensors that a result does not depend on, but whose gradient must be there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attach(y: Tensor, *others: Tensor) -> Tensor:
    """y as it is, to the bit, with a gradient of zero by the others: a parameter that never gets a
    gradient stops distributed training."""
    return _Attach.apply(y, *others) if any(other.requires_grad for other in others) else y


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, *others: Tensor) -> Tensor:
        ctx.shapes = [(other.shape, other.dtype, other.device) for other in others]
        return y.clone()  # a view could not be changed in place

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor, ...]:
        zeros = (torch.zeros(s, dtype=dtype, device=device) for s, dtype, device in ctx.shapes)
        return by_y, *zeros
