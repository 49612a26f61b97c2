"""Operations on rows, one per set, whose backward deliberately differs from autograd's; among them
the step of gradient descent with momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops.execution import is_batched, is_exporting, kernels_serve

LARGEST_WIDTH = 4096  # of a row whose length one program of the kernels measures


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

    The rows, gradient and y, are `[num_rows, K]`, their weights `[num_rows, 1]`; the factor is a
    scalar.
    """
    if weight.requires_grad or y_weight.requires_grad:
        return scaled(weight, gradient) + scaled(y_weight, scaled(factor, y))
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
