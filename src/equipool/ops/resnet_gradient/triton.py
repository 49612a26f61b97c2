"""The gradient and its vector-Jacobian product on a GPU: matrix products, and kernels between them.

Rows of the direction come before the rows of the point: one buffer holds `[h_dot; h]`, another
`[delta; by_u]`, so that each product of both is one product, and the derivative by a matrix is
their product with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import triton
from torch import Tensor

from equipool.ops.resnet_gradient import kernels
from equipool.ops.resnet_gradient.spec import Spec
from equipool.ops.tiles import make_tiles

ALIGNMENT = 8  # columns: 16 bytes in the shortest precision


class Layer:
    """Where a layer's columns are, and how its kernels are launched."""

    def __init__(self, size: int, column: int, first_width: int) -> None:
        self.size = size
        self.width = padded(size)
        self.column = column
        self.products_column = column - first_width
        block = triton.next_power_of_2(self.width)
        self.launch = {
            "SIZE": size,
            "WIDTH": self.width,
            "BLOCK": block,
            "ROWS": max(1, 2048 // block),
            "HAS_PRODUCTS": column > 0,
            "num_warps": 8 if block > 512 else 4,
        }


def padded(size: int) -> int:
    """Columns set aside for a layer."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class TritonGradient:
    """The summed potential's gradient for one batch.

    Args:
        spec: sizes and precision.
        shared: what all steps of a solve read, each layer's columns padded to the alignment:
            `x_part [N, H]`, `from_y [H, K]`, `from_hidden`, gammas, betas.
        index: row of each element, `[N]`, ascending.
        num_rows: rows of y.
    """

    def __init__(self, spec: Spec, shared: Sequence[Tensor], index: Tensor, num_rows: int) -> None:
        widths = [padded(size) for size in spec.sizes]
        columns = [0, *accumulate(widths)]
        self.spec = spec
        self.index = index
        self.tiles = make_tiles(index, num_rows)
        self.layers = [Layer(s, c, widths[0]) for s, c in zip(spec.sizes, columns, strict=False)]
        self.after = [c - widths[0] for c in columns[1:]]  # where the layers after one begin
        self.num_rows, self.width = num_rows, columns[-1]
        self.by_shared: tuple[Tensor, ...] | None = None  # derivatives, while they are added up
        self.set_shared(shared)

    def set_shared(self, shared: Sequence[Tensor]) -> None:
        hidden = len(self.layers) - 1
        self.x_part, self.from_y, *rest = shared
        products = self.spec.product_dtype
        self.from_hidden = [weight.to(products) for weight in rest[:hidden]]
        # The tensor cores want both operands to run along the summed dimension.
        self.to_hidden = [weight.T.contiguous() for weight in self.from_hidden]
        self.gammas, self.betas = rest[hidden : 2 * hidden], rest[2 * hidden :]

    def gradient(self, y: Tensor) -> Tensor:
        """`[num_rows, K] -> [num_rows, K]`."""
        y_part = y @ self.from_y.T
        products = self._activate(y_part, None)[1]
        adjoints, sums = self._buffer(self.width - self.layers[0].width), self._sums(1)
        self._last_layer(y_part, None, products, adjoints, sums, None)
        tiles = self.tiles
        for j in reversed(range(len(self.layers) - 1)):
            layer = self.layers[j]
            by_h = adjoints[:, self.after[j] :] @ self.to_hidden[j].T
            kernels.hidden_adjoint[(len(tiles.start),)](
                self.x_part, y_part, self.index, products, by_h, self.gammas[j], self.betas[j],
                tiles.start, tiles.end, adjoints, sums,
                self.x_part.stride(0), y_part.stride(0), products.stride(0), by_h.stride(0),
                adjoints.stride(0), sums.stride(0), layer.column, layer.products_column,
                self.spec.eps, **layer.launch,
            )  # fmt: skip
        return self._reduce(sums) @ self.from_y

    def vjp(self, by_gradient: Tensor, y: Tensor) -> Tensor:
        """The derivative by y; those by what the steps share are added to `by_shared`."""
        by_x_part, by_from_y, *by_parameters = self._by_shared()
        both = torch.cat([y, by_gradient]) @ self.from_y.T
        y_part, y_part_dot = both[: self.num_rows], both[self.num_rows :]
        hs, products = self._activate(y_part, y_part_dot)
        adjoints = self._buffer(self.width - self.layers[0].width, twice=True)
        sums = self._sums(2)
        self._last_layer(y_part, y_part_dot, products, adjoints, sums, by_x_part)
        tiles, hidden = self.tiles, len(self.layers) - 1
        for j in reversed(range(hidden)):
            layer = self.layers[j]
            after = adjoints[:, self.after[j] :]
            by_hs = after @ self.to_hidden[j].T
            _add_product(by_parameters[j], after.T, hs.pop())
            by_gamma, by_beta = sums.new_empty(2, len(tiles.start), layer.size)
            kernels.hidden_adjoints[(len(tiles.start),)](
                self.x_part, y_part, y_part_dot, self.index, products, by_hs,
                self.gammas[j], self.betas[j], tiles.start, tiles.end,
                adjoints, sums, by_x_part, by_gamma, by_beta,
                len(self.index), self.x_part.stride(0), y_part.stride(0), products.stride(0),
                by_hs.stride(0), adjoints.stride(0), sums.stride(0), self.width,
                layer.column, layer.products_column, self.spec.eps, **layer.launch,
            )  # fmt: skip
            by_parameters[hidden + j].add_(by_gamma.sum(0))
            by_parameters[2 * hidden + j].add_(by_beta.sum(0))
        delta, by_y_part = self._reduce(sums).split(self.width, dim=1)
        by_from_y.addmm_(by_y_part.T, y).addmm_(delta.T, by_gradient)
        return by_y_part @ self.from_y

    def _activate(self, y_part: Tensor, y_part_dot: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """Run the hidden layers: their activations, and what they give to the layers after."""
        twice = y_part_dot is not None
        products = self._buffer(self.width - self.layers[0].width, twice)
        hs: list[Tensor] = []
        for j, layer in enumerate(self.layers[:-1]):
            h = self._buffer(layer.width, twice)
            kernels.activate[(triton.cdiv(len(self.index), layer.launch["ROWS"]),)](
                self.x_part, y_part, y_part_dot, self.index, products,
                self.gammas[j], self.betas[j], h,
                len(self.index), self.x_part.stride(0), y_part.stride(0), products.stride(0),
                h.stride(0), layer.column, layer.products_column, self.spec.eps,
                HAS_DOT=twice, **layer.launch,
            )  # fmt: skip
            if j == 0:
                torch.mm(h, self.from_hidden[j].T, out=products)
            else:
                products[:, self.after[j] :].addmm_(h, self.from_hidden[j].T)
            if twice:
                hs.append(h)
        return hs, products

    def _last_layer(
        self, y_part: Tensor, y_part_dot: Tensor | None, products: Tensor, adjoints: Tensor,
        sums: Tensor, by_x_part: Tensor | None,
    ) -> None:  # fmt: skip
        layer, tiles = self.layers[-1], self.tiles
        kernels.last_layer[(len(tiles.start),)](
            self.x_part, y_part, y_part_dot, self.index, products, tiles.start, tiles.end,
            adjoints, sums, by_x_part,
            len(self.index), self.x_part.stride(0), y_part.stride(0), products.stride(0),
            adjoints.stride(0), sums.stride(0), self.width, layer.column, layer.products_column,
            self.spec.scale, HAS_DOT=y_part_dot is not None, **layer.launch,
        )  # fmt: skip

    def _reduce(self, sums: Tensor) -> Tensor:
        out = sums.new_empty(self.num_rows, sums.shape[1])
        block = 256
        kernels.reduce_tiles[(self.num_rows, triton.cdiv(sums.shape[1], block))](
            sums, self.tiles.first, out, sums.shape[1], sums.stride(0), out.stride(0), BLOCK=block
        )
        return out

    def _buffer(self, width: int, twice: bool = False) -> Tensor:
        rows = len(self.index) * (2 if twice else 1)
        return self.x_part.new_empty(rows, width, dtype=self.spec.product_dtype)

    def _sums(self, number: int) -> Tensor:
        return self.x_part.new_empty(len(self.tiles.start), number * self.width)

    def _by_shared(self) -> tuple[Tensor, ...]:
        if self.by_shared is None:
            parameters = (*self.from_hidden, *self.gammas, *self.betas)
            like = (self.x_part, self.from_y, *parameters)
            self.by_shared = tuple(torch.zeros_like(t, dtype=torch.float32) for t in like)
        return self.by_shared

    def take_by_shared(self) -> tuple[Tensor, ...]:
        """Hand over what was added up, and begin anew."""
        taken, self.by_shared = self._by_shared(), None
        return taken


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)


class Bind(torch.autograd.Function):
    """Ties what the steps of a solve share to their derivatives.

    Each step adds to one set of buffers in its backward, instead of handing out tensors to be
    added by autograd. The empty token that each step reads makes autograd call this backward when
    all steps of that backward pass are done, however many of them there were.
    """

    @staticmethod
    def forward(ctx: Any, bound: TritonGradient, *shared: Tensor) -> Tensor:
        ctx.bound = bound
        return shared[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.bound.take_by_shared()


class Step(torch.autograd.Function):
    """One evaluation of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, bound: TritonGradient, y: Tensor, token: Tensor, *shared: Tensor
    ) -> Tensor:
        ctx.bound = bound
        # Saved so that autograd notices if one of them is changed in place before the backward.
        ctx.save_for_backward(y, *shared)
        return bound.gradient(y)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_gradient: Tensor) -> tuple[Tensor | None, ...]:
        y, *shared = ctx.saved_tensors
        by_y = ctx.bound.vjp(by_gradient.contiguous(), y)
        return None, by_y, by_gradient.new_empty(0), *(None for _ in shared)
