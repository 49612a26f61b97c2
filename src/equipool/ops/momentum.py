"""One step of gradient descent with momentum, for every row at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipool.ops.availability import kernels_serve


def momentum_step(
    y: Tensor, velocity: Tensor, gradient: Tensor, learning_rate: Tensor, momentum: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`v <- mu v - alpha g`, `y <- y + v`, and the look-ahead `y + mu v` after that.

    Args:
        y: `[num_rows, K]`.
        velocity: `[num_rows, K]`.
        gradient: `[num_rows, K]`.
        learning_rate: alpha, a scalar.
        momentum: mu, a scalar.

    Returns:
        y, velocity and look-ahead; then the scalars as they are, for the next step to read. To its
        derivatives by them the kernel adds those of this step, which autograd would do otherwise,
        in kernels of their own.
    """
    if kernels_serve(y):
        rows = (y.contiguous(), velocity.contiguous(), gradient.contiguous())
        return _FusedStep.apply(*rows, learning_rate, momentum)
    stepped = _plain_step(y, velocity, gradient, learning_rate, momentum)
    return *stepped, learning_rate, momentum


def _plain_step(
    y: Tensor, velocity: Tensor, gradient: Tensor, learning_rate: Tensor, momentum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    velocity = momentum * velocity - learning_rate * gradient
    y = y + velocity
    return y, velocity, y + momentum * velocity


def _plain_adjoint(
    by_outputs: tuple[Tensor | None, ...], saved: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The kernel's backward in operations that can be differentiated again."""
    velocity, new_velocity, learning_rate, momentum = saved
    zero = torch.zeros_like(velocity)
    by_y, by_velocity, by_ahead = (zero if by is None else by for by in by_outputs[:3])
    later_rate, later_momentum = (0 if by is None else by for by in by_outputs[3:])
    to_y = by_y + by_ahead
    to_v = by_velocity + to_y + momentum * by_ahead
    gradient = (momentum * velocity - new_velocity) / learning_rate
    by_momentum = (to_v * velocity + by_ahead * new_velocity).sum() + later_momentum
    by_learning_rate = later_rate - (to_v * gradient).sum()
    return to_y, momentum * to_v, -learning_rate * to_v, by_learning_rate, by_momentum


class _FusedStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, velocity: Tensor, gradient: Tensor, learning_rate: Tensor,
        momentum: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        from equipool.ops import momentum_kernels as kernels

        new_y, new_velocity, ahead = (torch.empty_like(y) for _ in range(3))
        kernels.forward[kernels.grid(y)](
            y, velocity, gradient, learning_rate, momentum, new_y, new_velocity, ahead,
            y.numel(), BLOCK=kernels.BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(velocity, new_velocity, learning_rate, momentum)
        ctx.set_materialize_grads(False)
        return new_y, new_velocity, ahead, learning_rate, momentum

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        from equipool.ops import momentum_kernels as kernels

        if all(by is None for by in by_outputs[:3]):  # nothing depends on the step
            return None, None, None, *by_outputs[3:]
        velocity, new_velocity, learning_rate, momentum = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return _plain_adjoint(by_outputs, ctx.saved_tensors)
        given = [None if by is None else by.contiguous() for by in by_outputs]
        outs = tuple(torch.empty_like(velocity) for _ in range(3))
        grid = kernels.grid(velocity)
        by_scalars = velocity.new_empty(2, grid[0])
        kernels.backward[grid](
            *given, velocity, new_velocity, learning_rate, momentum, *outs, by_scalars,
            velocity.numel(), grid[0],
            HAS_Y=given[0] is not None, HAS_VELOCITY=given[1] is not None,
            HAS_AHEAD=given[2] is not None, HAS_RATE=given[3] is not None,
            HAS_MOMENTUM=given[4] is not None, BLOCK=kernels.BLOCK,
        )  # fmt: skip
        by_learning_rate, by_momentum = kernels.total(by_scalars).unbind()
        return (*outs, by_learning_rate.to(learning_rate.dtype), by_momentum.to(momentum.dtype))
