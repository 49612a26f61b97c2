"""Which implementation of the gradient serves a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from equipool.ops.execution import kernels_serve
from equipool.ops.resnet_gradient.folding import ALIGNMENT, Affine, Maps, Spec, fold
from equipool.ops.resnet_gradient.torch import TorchGradient


class ResNetGradient(Protocol):
    """The potential of one batch, summed over its sets, as a function of `y [num_rows, K]`."""

    def value(self, y: Tensor) -> Tensor:
        """`[num_rows]`, without a graph."""

    def gradient(self, y: Tensor) -> Tensor:
        """Its gradient in y, `[num_rows, K]`; differentiable once more."""

    def hessian_product(self, direction: Tensor, y: Tensor) -> Tensor:
        """The product of the direction with the second derivative at y, without a graph."""


def make_gradient(
    spec: Spec, maps: Maps, norms: Sequence[Affine], x: Tensor, index: Tensor, num_rows: int
) -> ResNetGradient:
    """The potential summed over sets, and its derivatives with respect to y.

    The contribution of x to the network is computed here, once for all steps of a solve.

    Args:
        spec: shape and precision of the potential.
        maps: its layers and skips, in float32 at least.
        norms: scale and shift of each hidden layer's normalisation.
        x: elements in set order, `[N, C]`.
        index: row of each element, `[N]`, ascending.
        num_rows: rows of y.
    """
    serve = kernels_serve(x) and x.shape[0] > 0
    folded = fold(*maps, x.shape[1], ALIGNMENT if serve else 1)
    parameters = (*folded.from_hidden, *(gamma for gamma, _ in norms), *(beta for _, beta in norms))
    if serve:
        from equipool.ops.resnet_gradient.triton import TritonGradient

        # It is read at every step: in the precision of the products that are added to it.
        operands = (folded.constant, x, folded.from_x.T)
        x_part = torch.addmm(*(operand.to(spec.product_dtype) for operand in operands))
        return TritonGradient(spec, (x_part, folded.from_y, *parameters), index, num_rows)
    product = x.to(spec.product_dtype) @ folded.from_x.T.to(spec.product_dtype)
    x_part = product.to(folded.constant.dtype) + folded.constant
    return TorchGradient(spec, (x_part, folded.from_y, *parameters), index)
