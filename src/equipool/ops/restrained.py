"""One step of momentum that is held back, for every row at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops.availability import kernels_serve

WIDEST = 4096  # of a row that one program of the kernels takes


class Restraints(NamedTuple):
    """What holds a step back."""

    max_step: float | None  # the longest step
    max_gradient: float | None  # the longest gradient that is followed
    curvature_safe: bool  # whether steps are no longer than the inverse of the curvature allows


class Met(NamedTuple):
    """What a row has met on its way to this step. Not differentiated."""

    point: Tensor  # [num_rows, K] where the gradient is taken
    last_point: Tensor  # [num_rows, K] where the one before was
    last_gradient: Tensor  # [num_rows, K]
    curvature: Tensor  # [num_rows, 1] the largest so far


def restrained_step(
    y: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    learning_rate: Tensor,
    momentum: Tensor,
    met: Met,
    restraints: Restraints,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""`v <- cut_s(mu v - alpha c cut_r(g))`, `y <- y + v`, and the look-ahead `y + mu v` after it.

    `cut_r(a) = a / max(1, |a| / r)` and `c = min(1, 1 / (alpha L))`, where L is the largest
    curvature met, this step's included: $L = \lVert g - g' \rVert / \lVert p - p' \rVert$.

    Args:
        y: `[num_rows, K]`.
        velocity: `[num_rows, K]`.
        gradient: `[num_rows, K]`.
        learning_rate: alpha, a scalar.
        momentum: mu, a scalar.
        met: what L is known from.
        restraints: s, r, and whether c is 1.

    Returns:
        y, velocity and look-ahead; the scalars as they are, for the next step to read, as in
        `momentum_step`; and L as `[num_rows, 1]`, which is held constant in the derivative.
    """
    if kernels_serve(y) and y.shape[-1] <= WIDEST:
        rows = (tensor.contiguous() for tensor in (y, velocity, gradient))
        constant = (tensor.detach().contiguous() for tensor in met)
        return _FusedStep.apply(*rows, learning_rate, momentum, *constant, restraints)
    curvature = met.curvature
    if restraints.curvature_safe:
        curvature = torch.maximum(curvature, _secant(gradient, met))
    stepped = _plain_step(y, velocity, gradient, learning_rate, momentum, curvature, restraints)
    return *stepped, curvature


@torch.no_grad()
def _secant(gradient: Tensor, met: Met) -> Tensor:
    """The curvature between the last two points of each row, 0 where they are one: `[n, 1]`."""
    moved = torch.linalg.vector_norm(met.point - met.last_point, dim=-1, keepdim=True)
    bent = torch.linalg.vector_norm(gradient - met.last_gradient, dim=-1, keepdim=True)
    return torch.where(moved > 0, bent / moved, 0)


def _plain_step(
    y: Tensor, velocity: Tensor, gradient: Tensor, learning_rate: Tensor, momentum: Tensor,
    curvature: Tensor, restraints: Restraints,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if restraints.max_gradient is not None:
        gradient = cut(gradient, restraints.max_gradient)
    if restraints.curvature_safe:
        gradient = gradient / (learning_rate * curvature).clamp(min=1)
    velocity = momentum * velocity - learning_rate * gradient
    if restraints.max_step is not None:
        velocity = cut(velocity, restraints.max_step)
    y = y + velocity
    return y, velocity, y + momentum * velocity, learning_rate, momentum


def cut(vectors: Tensor, longest: float) -> Tensor:
    """Rows that are longer are brought to this length, `[num_rows, K] -> [num_rows, K]`."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * (longest / norms.clamp(min=longest))


def _constants(restraints: Restraints) -> dict[str, Any]:
    """The restraints as the kernels read them."""
    return {
        "longest": restraints.max_step or 0.0,
        "longest_gradient": restraints.max_gradient or 0.0,
        "CUT": restraints.max_step is not None,
        "CUT_GRADIENT": restraints.max_gradient is not None,
        "SAFE": restraints.curvature_safe,
    }


class _FusedStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, velocity: Tensor, gradient: Tensor, learning_rate: Tensor,
        momentum: Tensor, point: Tensor, last_point: Tensor, last_gradient: Tensor,
        curvature: Tensor, restraints: Restraints,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        from equipool.ops import restrained_kernels as kernels

        new_y, new_velocity, ahead = (torch.empty_like(y) for _ in range(3))
        new_curvature = torch.empty_like(curvature)
        shape = kernels.Shape(y)
        kernels.forward[shape.grid](
            y, velocity, gradient, learning_rate, momentum, point, last_point, last_gradient,
            curvature, new_y, new_velocity, ahead, new_curvature, *y.shape,
            **_constants(restraints), ROWS=shape.rows, WIDTH=shape.width,
        )  # fmt: skip
        ctx.restraints = restraints
        ctx.save_for_backward(velocity, gradient, learning_rate, momentum, new_curvature)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(new_curvature)
        return new_y, new_velocity, ahead, learning_rate, momentum, new_curvature

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        from equipool.ops import restrained_kernels as kernels

        by = by_outputs[:5]
        unused = (None,) * 5
        if all(part is None for part in by[:3]):  # nothing depends on the step
            return (None, None, None, *by[3:], *unused)
        velocity, gradient, learning_rate, momentum, curvature = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return (*_plain_adjoint(by, ctx.saved_tensors, ctx.restraints), *unused)
        given = [None if part is None else part.contiguous() for part in by]
        outs = tuple(torch.empty_like(velocity) for _ in range(3))
        shape = kernels.Shape(velocity)
        by_scalars = velocity.new_empty(2, shape.grid[0], dtype=torch.float32)
        kernels.backward[shape.grid](
            *given, velocity, gradient, learning_rate, momentum, curvature, *outs, by_scalars,
            *velocity.shape, shape.grid[0],
            HAS_Y=given[0] is not None, HAS_VELOCITY=given[1] is not None,
            HAS_AHEAD=given[2] is not None, HAS_RATE=given[3] is not None,
            HAS_MOMENTUM=given[4] is not None,
            **_constants(ctx.restraints), ROWS=shape.rows, WIDTH=shape.width,
        )  # fmt: skip
        by_rate, by_momentum = kernels.total(by_scalars).unbind()
        return (*outs, by_rate.to(learning_rate.dtype), by_momentum.to(momentum.dtype), *unused)


def _plain_adjoint(
    by_outputs: tuple[Tensor | None, ...], saved: tuple[Tensor, ...], restraints: Restraints
) -> tuple[Tensor | None, ...]:
    """The kernel's backward in operations that can be differentiated again."""
    # Aliases: tensors of an earlier step depend on the same scalars; those ways are not ours.
    velocity, gradient, learning_rate, momentum, curvature = (t.view_as(t) for t in saved)
    y = torch.zeros_like(velocity, requires_grad=True)  # the derivative does not depend on it
    inputs = (y, velocity, gradient, learning_rate, momentum)
    outputs = _plain_step(*inputs, curvature, restraints)
    given = [(out, by) for out, by in zip(outputs, by_outputs, strict=True) if by is not None]
    used = [(out, by) for out, by in given if out.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = torch.autograd.grad(
        [out for out, _ in used], wanted, [by for _, by in used],
        create_graph=True, allow_unused=True,
    )  # fmt: skip
    by_wanted = dict(zip(map(id, wanted), found, strict=True))
    return tuple(by_wanted.get(id(tensor)) for tensor in inputs)
