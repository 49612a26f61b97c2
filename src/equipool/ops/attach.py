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
