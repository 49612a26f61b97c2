"""One step of gradient descent with momentum, for every row at once."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops.derivatives import is_plain_backward, plain_adjoint, scaled, separate
from equipool.ops.execution import kernels_serve

LARGEST_WIDTH = 4096  # of a row whose length one program of the kernels measures


class History(NamedTuple):
    """What a row's curvature is estimated from. Not differentiated."""

    point: Tensor  # [num_rows, K] where the gradient is taken
    last_point: Tensor  # [num_rows, K] where the previous one was
    last_gradient: Tensor  # [num_rows, K]
    curvature: Tensor  # [num_rows, 1] the largest so far


class Step(NamedTuple):
    """The outcome of a step."""

    y: Tensor
    velocity: Tensor
    ahead: Tensor  # the look-ahead point, y + mu v
    curvature: Tensor | None  # [num_rows, 1] with a history; constant in the derivative


def momentum_step(
    y: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    learning_rate: Tensor,
    momentum: Tensor,
    max_step: float | None = None,
    history: History | None = None,
) -> Step:
    r"""`v <- cut(mu v - alpha c g)`, `y <- y + v`, and the look-ahead `y + mu v` after it.

    `cut(a) = a / max(1, |a| / max_step)`, or `a` without a limit. With a history
    `c = min(1, 1 / (alpha L))`, where L is the largest curvature so far, this step's included:
    $L = \lVert g - g' \rVert / \lVert p - p' \rVert$. Without one c is 1.

    y, velocity and gradient are `[num_rows, K]`; the learning rate, alpha, and the momentum, mu,
    are scalars. A row with a zero cotangent contributes nothing to those of the scalars, even if it
    is non-finite.
    """
    by_rows = max_step is not None or history is not None
    if kernels_serve(y) and (not by_rows or y.shape[-1] <= LARGEST_WIDTH):
        rows = (tensor.contiguous() for tensor in (y, velocity, gradient))
        constant = [None] * 4 if history is None else [t.detach().contiguous() for t in history]
        return Step(*_FusedStep.apply(*rows, learning_rate, momentum, max_step, *constant))
    curvature = None
    if history is not None:
        curvature = torch.maximum(history.curvature, _secant(gradient, history))
    stepped = _plain_step(y, velocity, gradient, learning_rate, momentum, curvature, max_step)
    return Step(*stepped, curvature)


@torch.no_grad()
def _secant(gradient: Tensor, history: History) -> Tensor:
    """The curvature between the last two points of each row, `[n, 1]`; 0 where they are so close
    that the difference of the gradients may be rounding, as where a search has converged."""
    moved = torch.linalg.vector_norm(history.point - history.last_point, dim=-1, keepdim=True)
    bent = torch.linalg.vector_norm(gradient - history.last_gradient, dim=-1, keepdim=True)
    length = torch.linalg.vector_norm(history.point, dim=-1, keepdim=True)
    return torch.where(moved > closest(gradient.dtype) * length, bent / moved, 0)


def closest(dtype: torch.dtype) -> float:
    """The smallest distance of two points, relative to their length, whose gradients differ by more
    than rounding: half of the digits."""
    return math.sqrt(torch.finfo(dtype).eps)


def _plain_step(
    y: Tensor, velocity: Tensor, gradient: Tensor, learning_rate: Tensor, momentum: Tensor,
    curvature: Tensor | None, max_step: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if curvature is not None:
        gradient, rest = separate(gradient)
        gradient = gradient / (learning_rate * curvature.nan_to_num()).clamp(min=1) + rest
    velocity = scaled(momentum, velocity) - scaled(learning_rate, gradient)
    if max_step is not None:
        velocity = cut(velocity, max_step)
    y = y + velocity
    return y, velocity, y + scaled(momentum, velocity)


def cut(vectors: Tensor, longest: float) -> Tensor:
    """Shorten longer rows to this length, `[num_rows, K] -> [num_rows, K]`."""
    vectors, rest = separate(vectors)
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * (longest / norms.clamp(min=longest)) + rest


class _FusedStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, velocity: Tensor, gradient: Tensor, learning_rate: Tensor,
        momentum: Tensor, max_step: float | None, *history: Tensor | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        from equipool.ops import kernels

        curvature = history[-1]
        new_y, new_velocity, ahead = (torch.empty_like(y) for _ in range(3))
        new_curvature = None if curvature is None else torch.empty_like(curvature)
        shape = kernels.Shape(y, by_rows=max_step is not None or curvature is not None)
        kernels.momentum_step[shape.grid](
            y, velocity, gradient, learning_rate, momentum, *history,
            new_y, new_velocity, ahead, new_curvature, y.numel(), shape.width,
            closest(torch.float32), max_step or 0.0, CUT=max_step is not None,
            SAFE=curvature is not None, ROWS=shape.rows, WIDTH=shape.block,
        )  # fmt: skip
        ctx.max_step = max_step
        ctx.save_for_backward(velocity, gradient, learning_rate, momentum, new_curvature)
        ctx.set_materialize_grads(False)
        if new_curvature is not None:
            ctx.mark_non_differentiable(new_curvature)
        return new_y, new_velocity, ahead, new_curvature

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        from equipool.ops import kernels

        by, max_step = by_outputs[:3], ctx.max_step
        constant = (None,) * 5
        if all(part is None for part in by):  # nothing depends on the step
            return (None,) * 10
        *inputs, curvature = ctx.saved_tensors
        velocity, gradient, learning_rate, momentum = inputs
        if is_plain_backward(*by):
            y = torch.zeros_like(velocity)  # the derivative does not depend on it
            step = partial(_plain_step, curvature=curvature, max_step=max_step)
            return (*plain_adjoint(step, [y, *inputs], by), *constant)
        given = [None if part is None else part.contiguous() for part in by]
        outs = tuple(torch.empty_like(velocity) for _ in range(3))
        shape = kernels.Shape(velocity, by_rows=max_step is not None or curvature is not None)
        by_scalars = velocity.new_empty(2, shape.grid[0], dtype=torch.float32)
        kernels.momentum_step_backward[shape.grid](
            *given, velocity, gradient, learning_rate, momentum, curvature, *outs, by_scalars,
            velocity.numel(), shape.width, shape.grid[0], max_step or 0.0,
            HAS_Y=given[0] is not None, HAS_VELOCITY=given[1] is not None,
            HAS_AHEAD=given[2] is not None, CUT=max_step is not None, SAFE=curvature is not None,
            ROWS=shape.rows, WIDTH=shape.block,
        )  # fmt: skip
        by_rate, by_momentum = kernels.total(by_scalars).unbind()
        return (*outs, by_rate.to(learning_rate.dtype), by_momentum.to(momentum.dtype), *constant)
