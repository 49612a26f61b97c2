"""Which implementation of the gradient a batch gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.ops.availability import kernels_serve
from equipool.ops.resnet_gradient.folding import ALIGNMENT, Maps, fold
from equipool.ops.resnet_gradient.op import (
    Room,
    hessian_product,
    summed_gradient,
    summed_value,
)
from equipool.ops.resnet_gradient.spec import Spec


class Bound(NamedTuple):
    """The potential of one batch, summed over its sets, as functions of `y [num_rows, K]`."""

    value: Callable[[Tensor], Tensor]
    """`[num_rows]`; no graph."""

    gradient: Callable[[Tensor], Tensor]
    """Its derivative by y, differentiable."""

    hessian_product: Callable[[Tensor, Tensor], Tensor]
    """The product of a direction, the first argument, with its second derivative at y; no graph."""


def bind_gradient(
    spec: Spec,
    maps: Maps,
    x: Tensor,
    index: Tensor,
    num_rows: int,
    gammas: Sequence[Tensor],
    betas: Sequence[Tensor],
) -> Bound:
    """The derivatives by y of the potential summed over sets.

    What x gives to the network is computed here, once for all steps of a solve.

    Args:
        spec: shape and precision of the potential.
        maps: its layers and skips, in float32 at least.
        x: elements in set order, `[N, C]`.
        index: row of each element, `[N]`, ascending.
        num_rows: rows of y.
        gammas: scales of the hidden layers' normalisations.
        betas: their shifts.
    """
    if kernels_serve(x) and x.shape[0] > 0:
        folded = fold(*maps, x.shape[1], ALIGNMENT)
        # It is read at every step: in the precision of the products that are added to it.
        operands = (folded.constant, x, folded.from_x.T)
        x_part = torch.addmm(*(operand.to(spec.product_dtype) for operand in operands))
        shared = (x_part, folded.from_y, *folded.from_hidden, *gammas, *betas)
        return _bind_kernels(spec, shared, index, num_rows)
    folded = fold(*maps, x.shape[1])
    x_part = _product(x, folded.from_x.T, spec.product_dtype) + folded.constant
    parameters, room = (*folded.from_hidden, *gammas, *betas), Room(x_part)
    return Bound(
        lambda y: summed_value(spec, y, x_part, folded.from_y, index, *parameters),
        lambda y: summed_gradient(
            spec, room, y, x_part, folded.from_y, index, folded.from_hidden, gammas, betas
        ),
        lambda direction, y: hessian_product(
            spec, direction, y, x_part, folded.from_y, index, *parameters
        ),
    )


def _bind_kernels(spec: Spec, shared: Sequence[Tensor], index: Tensor, num_rows: int) -> Bound:
    from equipool.ops.resnet_gradient.triton import Bind, Step, TritonGradient

    detached = [tensor.detach() for tensor in shared]
    bound = TritonGradient(spec, detached, index, num_rows)
    if not torch.is_grad_enabled():
        return Bound(bound.value, bound.gradient, bound.hessian_product)
    token = Bind.apply(bound, *shared)
    return Bound(
        bound.value, lambda y: Step.apply(bound, y, token, *detached), bound.hessian_product
    )


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return (a.to(dtype) @ b.to(dtype)).to(b.dtype)
