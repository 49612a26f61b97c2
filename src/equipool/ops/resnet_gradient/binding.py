"""Which implementation of the gradient a batch gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equipool.ops.availability import kernels_serve
from equipool.ops.resnet_gradient.folding import Folded, align
from equipool.ops.resnet_gradient.op import summed_gradient
from equipool.ops.resnet_gradient.spec import Spec


def bind_gradient(
    spec: Spec,
    folded: Folded,
    x: Tensor,
    index: Tensor,
    num_rows: int,
    gammas: Sequence[Tensor],
    betas: Sequence[Tensor],
) -> Callable[[Tensor], Tensor]:
    """The derivative by y of the potential summed over sets, as a function of `y [num_rows, K]`.

    What x gives to the network is computed here, once for all steps of a solve.

    Args:
        spec: shape and precision of the potential.
        folded: its matrices.
        x: elements in set order, `[N, C]`.
        index: row of each element, `[N]`, ascending.
        num_rows: rows of y.
        gammas: scales of the hidden layers' normalisations.
        betas: their shifts.
    """
    kernels = kernels_serve(x) and x.shape[0] > 0
    if kernels:
        folded = align(folded, spec.sizes)
    x_part = _product(x, folded.from_x.T, spec.product_dtype) + folded.constant
    if kernels:
        shared = (x_part, folded.from_y, *folded.from_hidden, *gammas, *betas)
        return _bind_kernels(spec, shared, index, num_rows)
    return lambda y: summed_gradient(
        spec, y, x_part, folded.from_y, index, folded.from_hidden, gammas, betas
    )


def _bind_kernels(
    spec: Spec, shared: Sequence[Tensor], index: Tensor, num_rows: int
) -> Callable[[Tensor], Tensor]:
    from equipool.ops.resnet_gradient.triton import Bind, Step, TritonGradient

    detached = [tensor.detach() for tensor in shared]
    bound = TritonGradient(spec, detached, index, num_rows)
    if not torch.is_grad_enabled():
        return bound.gradient
    token = Bind.apply(bound, *shared)
    return lambda y: Step.apply(bound, y, token, *detached)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return (a.to(dtype) @ b.to(dtype)).to(b.dtype)
