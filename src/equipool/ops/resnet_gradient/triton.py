"""The gradient of the summed potential on a GPU: matrix products, and kernels between them.

Rows of the direction come before the rows of the point: one buffer holds `[h_dot; h]`, another
`[delta; by_u]`, so that each product of both is one product, and the cotangent of a matrix is
their product with each other. Elements are taken in parts of bounded size, and so is the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import accumulate
from operator import iadd
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from equipool.ops.execution import is_batched
from equipool.ops.resnet_gradient import kernels
from equipool.ops.resnet_gradient.folding import (
    ALIGNMENT,
    BATCHED,
    SECOND,
    Parameters,
    Spec,
    unavailable,
)
from equipool.ops.segments import Blocks, block_sum, make_blocks
from equipool.private_torch import current_backward

LARGEST_PART = 32_768
TILES_AT_ONCE = 32
SMALLEST, LARGEST = 4, 1024  # elements of a tile
ENOUGH = 1600  # tiles that keep a large GPU busy
TILE_BLOCK = 128  # tiles that a program writes at once


class Tiles(NamedTuple):
    """A partition of a batch's elements, finer than its sets.

    Allocated for the worst case to avoid a sync; unused tiles are empty.
    """

    start: Tensor  # [num_tiles] first element
    end: Tensor  # [num_tiles] one past the last
    first: Tensor  # [num_rows + 1] first tile of each row


def make_tiles(index: Tensor, num_rows: int) -> Tiles:
    """Cut the elements of each row, given by `index [N]` in ascending order, into tiles.

    A row that begins at element p has its first tile at `p // size + row`. From one row to the next
    that leaves room for all its tiles, and no row has to know how many tiles those before it need.
    """
    num_elements = index.shape[0]
    size = tile_size(num_elements)
    start, end = (index.new_empty(num_elements // size + num_rows) for _ in range(2))
    first = index.new_empty(num_rows + 1)
    kernels.cut_tiles[(num_rows + 1,)](
        index, start, end, first, num_elements, num_rows, size, BLOCK=TILE_BLOCK, num_warps=1
    )
    return Tiles(start, end, first)


def tile_size(num_elements: int) -> int:
    """Elements per tile: a power of two that gives enough tiles, within limits."""
    size = SMALLEST
    while size < LARGEST and size * ENOUGH < num_elements:
        size *= 2
    return size


class LayerLaunch:
    """Where a layer's columns are, and how its kernels are launched."""

    def __init__(self, size: int, column: int, first_width: int) -> None:
        self.size = size
        self.width = size + -size % ALIGNMENT
        self.column = column
        self.products_column = column - first_width
        block = triton.next_power_of_2(self.width)
        shape = {"SIZE": size, "WIDTH": self.width, "BLOCK": block, "HAS_PRODUCTS": column > 0}
        # Measured on an H200. A row by a warp or two: its sums need no exchange between many.
        wide = block > 512
        self.by_rows = {**shape, "ROWS": max(1, 2048 // block), "num_warps": 2 if wide else 4}
        self.by_tiles = {**shape, "num_warps": 2}
        self.as_last = {**shape, "ROWS": max(1, 1024 // block), "num_warps": 4}


class Workspace:
    """A run of the batch's elements, and what is added up over the steps for each."""

    def __init__(self, x_part: Tensor, index: Tensor, num_rows: int) -> None:
        self.x_part, self.index, self.num_rows = x_part, index, num_rows
        self.tiles = make_tiles(index, num_rows)
        self.num_elements: int = index.shape[0]
        self.num_tiles: int = self.tiles.start.shape[0]
        self.by_x_part: Tensor | None = None  # of this part, while it is added up

    @cached_property
    def blocks(self) -> Blocks:
        return make_blocks(self.index, self.num_rows)


class TritonGradient:
    """The summed potential of one batch and its derivatives in y. `shared` is as `TorchGradient`
    reads it, each layer's columns padded to the alignment."""

    def __init__(self, spec: Spec, shared: Sequence[Tensor], index: Tensor, num_rows: int) -> None:
        # Not one object with the evaluator: autograd holds that, and the token holds autograd.
        self.shared = [tensor.detach() for tensor in shared]
        self.evaluator = Evaluator(spec, self.shared, index, num_rows)
        self.token = _Bind.apply(self.evaluator, *shared) if torch.is_grad_enabled() else None
        self.value, self.hessian_product = self.evaluator.value, self.evaluator.hessian_product

    def gradient(self, y: Tensor) -> Tensor:
        """The gradient in y, `[num_rows, K]`, differentiable where the object was made so."""
        if self.token is None:
            return self.evaluator.gradient(y)
        return _Step.apply(self.evaluator, y, self.token, *self.shared)


class Evaluator:
    """What `TritonGradient` launches, and the sums of derivatives over the steps of a solve."""

    def __init__(self, spec: Spec, shared: Sequence[Tensor], index: Tensor, num_rows: int) -> None:
        x_part, from_y, *rest = shared
        from_hidden, self.gammas, self.betas = Parameters.of(tuple(rest))
        self.spec = spec
        self.num_rows, self.width = num_rows, from_y.shape[0]
        columns = [0, *accumulate(size + -size % ALIGNMENT for size in spec.sizes)]
        first = columns[1]
        self.layers = [LayerLaunch(*of, first) for of in zip(spec.sizes, columns[:-1], strict=True)]
        self.after = [column - first for column in columns[1:]]  # where those after a layer begin
        self.x_part = x_part
        self.from_y = self._aligned(from_y)
        self.from_hidden = [weight.to(spec.product_dtype) for weight in from_hidden]
        # The tensor cores want both operands to run along the summed dimension.
        self.to_hidden = [weight.T.contiguous() for weight in self.from_hidden]
        parts = zip(x_part.split(LARGEST_PART), index.split(LARGEST_PART), strict=True)
        self.parts = [Workspace(*part, num_rows) for part in parts]
        self.by_shared: tuple[Tensor, ...] = ()  # derivatives, while they are added up
        self.by_norms: list[Tensor] = []  # [num_tiles, 2, size] for each hidden layer, likewise
        self.adding_for = -1  # the backward pass they are added up for

    def value(self, y: Tensor) -> Tensor:
        y_part = self._product(self._aligned(y), self.from_y.T)
        return reduce(iadd, (self._value(part, y_part) for part in self.parts))

    def gradient(self, y: Tensor) -> Tensor:
        y_part = self._product(self._aligned(y), self.from_y.T)
        delta = reduce(iadd, (self._adjoints(part, y_part) for part in self.parts))
        return self._product(delta, self.from_y)

    def vjp(self, by_gradient: Tensor, y: Tensor) -> Tensor:
        """The cotangent of y; those of what the steps share are added up in `by_shared`. A row
        with a zero cotangent contributes nothing, even if it is non-finite."""
        self._begin()
        points, both = self._along(by_gradient, y, shared=True)
        self._add_product(self.by_shared[1], both.T, points)
        return self._product(both[self.num_rows :], self.from_y)

    def hessian_product(self, direction: Tensor, y: Tensor) -> Tensor:
        """The cotangent of y alone, which is the product: the Hessian is symmetric."""
        _, both = self._along(direction, y, shared=False)
        return self._product(both[self.num_rows :], self.from_y)

    def _along(self, direction: Tensor, y: Tensor, *, shared: bool) -> tuple[Tensor, Tensor]:
        """The direction above y, aligned, and the sums of `delta` above those of `by_u`. Where the
        direction of a row is zero its y is too, as it may not be finite."""
        num_rows, width = y.shape
        points = self._buffer(2 * num_rows, width + -width % ALIGNMENT)[:, :width]
        live = self.x_part.new_empty(num_rows, dtype=torch.float32)  # whether it is not zero
        kernels.stack_points[(num_rows,)](
            direction.contiguous(), y.contiguous(), points, live, num_rows, width,
            points.stride(0), BLOCK=min(triton.next_power_of_2(width), 1024),
        )  # fmt: skip
        dot, point = self._product(points, self.from_y.T).split(num_rows)
        sums = (self._adjoints(part, point, dot, live, shared) for part in self.parts)
        return points, reduce(iadd, sums)

    def take_by_shared(self) -> tuple[Tensor, ...]:
        """Hand over what was added up, and begin anew."""
        self._begin()
        taken, self.by_shared = self.by_shared, ()
        # In two passes: one would keep few programs busy.
        norms = [norm.unflatten(0, (-1, TILES_AT_ONCE)).sum(1).sum(0) for norm in self.by_norms]
        self.by_norms = []
        for part in self.parts:
            part.by_x_part = None
        return (*taken, *(norm[0] for norm in norms), *(norm[1] for norm in norms))

    def _begin(self) -> None:
        """Start the sums of a backward pass. One that does not reach `Bind`, because it was asked
        for other gradients or failed, leaves its sums behind: they are not those of the next."""
        current = current_backward()
        if self.by_shared and self.adding_for == current:
            return
        self.adding_for = current
        like = (self.x_part, self.from_y, *self.from_hidden)
        num_tiles = max(part.num_tiles for part in self.parts)
        num_tiles += -num_tiles % TILES_AT_ONCE
        of_norms = [(num_tiles, 2, size) for size in self.spec.sizes[:-1]]
        sums = _zeros([*(tuple(t.shape) for t in like), *of_norms], self.x_part.device)
        self.by_shared, self.by_norms = tuple(sums[: len(like)]), sums[len(like) :]
        of_parts = self.by_shared[0].split(LARGEST_PART)
        for part, by_x_part in zip(self.parts, of_parts, strict=True):
            part.by_x_part = by_x_part

    def _value(self, part: Workspace, y_part: Tensor) -> Tensor:
        """The last layer is small, and is left to torch."""
        _, products, _ = self._activate(part, y_part)
        last = self.layers[-1]
        columns = slice(last.column, last.column + last.size)
        u = y_part[:, columns][part.index] + part.x_part[:, columns]
        if len(self.layers) > 1:
            u += products[:, last.products_column : last.products_column + last.size]
        values = u.square().sum(1).mul_(self.spec.scale / 2)
        return block_sum(values, part.blocks, self.num_rows)

    def _adjoints(
        self, part: Workspace, y_part: Tensor,
        y_part_dot: Tensor | None = None, live: Tensor | None = None, shared: bool = False,
    ) -> Tensor:  # fmt: skip
        """The sums of `delta` over each row, with a direction above those of `by_u`."""
        hs, products, stats = self._activate(part, y_part, y_part_dot, live)
        several = 1 if y_part_dot is None else 2
        adjoints = self._buffer(several * part.num_elements, self.width - self.layers[0].width)
        sums = y_part.new_empty(part.num_tiles, several * self.width)
        tiles, num_tiles, last = part.tiles, (part.num_tiles,), self.layers[-1]
        kernels.last_layer[num_tiles](
            part.x_part, y_part, y_part_dot, live, part.index, products, tiles.start, tiles.end,
            adjoints, sums, part.by_x_part,
            part.num_elements, part.x_part.stride(0), y_part.stride(0), products.stride(0),
            adjoints.stride(0), sums.stride(0), self.width, last.column, last.products_column,
            self.spec.scale, HAS_DOT=y_part_dot is not None, HAS_SHARED=shared, **last.as_last,
        )  # fmt: skip
        for j in reversed(range(len(self.layers) - 1)):
            layer, h, after = self.layers[j], hs.pop(), adjoints[:, self.after[j] :]
            if shared:
                self._add_product(self.by_shared[2 + j], after.T, h)
            by_h = after @ self.to_hidden[j].T
            tensors = (part.x_part, y_part, products, by_h, adjoints, sums)
            strides = [tensor.stride(0) for tensor in tensors]
            if y_part_dot is None:
                kernels.hidden_adjoint[num_tiles](
                    part.x_part, y_part, part.index, products, stats[j], h, by_h, self.gammas[j],
                    tiles.start, tiles.end, adjoints, sums,
                    *strides, layer.column, layer.products_column, **layer.by_tiles,
                )  # fmt: skip
            else:
                kernels.hidden_adjoints[num_tiles](
                    part.x_part, y_part, y_part_dot, live, part.index, products, stats[j], h, by_h,
                    self.gammas[j], tiles.start, tiles.end,
                    adjoints, sums, part.by_x_part, self.by_norms[j] if shared else None,
                    part.num_elements, *strides, self.width, layer.column, layer.products_column,
                    HAS_SHARED=shared, **layer.by_tiles,
                )  # fmt: skip
        # Several parts are added up before they are rounded for the products.
        dtype = self.spec.product_dtype if len(self.parts) == 1 else sums.dtype
        out, block = sums.new_empty(several * self.num_rows, self.width, dtype=dtype), 256
        kernels.reduce_tiles[(self.num_rows, triton.cdiv(self.width, block), several)](
            sums, tiles.first, out, self.width, sums.stride(0), out.stride(0), self.num_rows,
            BLOCK=block,
        )  # fmt: skip
        return out

    def _activate(
        self, part: Workspace, y_part: Tensor,
        y_part_dot: Tensor | None = None, live: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor, Tensor]:  # fmt: skip
        """Run the hidden layers: their activations, what they give to the layers after, and the
        means that their adjoints need."""
        rows = part.num_elements if y_part_dot is None else 2 * part.num_elements
        products = self._buffer(rows, self.width - self.layers[0].width)
        stats = y_part.new_empty(len(self.layers) - 1, part.num_elements, 4)
        hs: list[Tensor] = []
        for j, layer in enumerate(self.layers[:-1]):
            h = self._buffer(rows, layer.width)
            kernels.activate[(triton.cdiv(part.num_elements, layer.by_rows["ROWS"]),)](
                part.x_part, y_part, y_part_dot, live, part.index, products,
                self.gammas[j], self.betas[j], h, stats[j],
                part.num_elements, part.x_part.stride(0), y_part.stride(0), products.stride(0),
                h.stride(0), layer.column, layer.products_column, self.spec.eps,
                HAS_DOT=y_part_dot is not None, **layer.by_rows,
            )  # fmt: skip
            if j == 0:
                torch.mm(h, self.from_hidden[j].T, out=products)
            else:
                products[:, self.after[j] :].addmm_(h, self.from_hidden[j].T)
            hs.append(h)
        return hs, products, stats

    def _buffer(self, rows: int, width: int) -> Tensor:
        return self.x_part.new_empty(rows, width, dtype=self.spec.product_dtype)

    def _aligned(self, tensor: Tensor) -> Tensor:
        """The tensor in the products' precision, every row at an address that fast products
        require."""
        rows, width = tensor.shape
        if width % ALIGNMENT == 0 and tensor.dtype == self.spec.product_dtype:
            return tensor.contiguous()
        return self._buffer(rows, width + -width % ALIGNMENT)[:, :width].copy_(tensor)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """A product of tensors that belong to sets, in float32."""
        dtype = self.spec.product_dtype
        if dtype == torch.float32:
            return a @ b
        if a.is_cuda:
            return torch.mm(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
        return a.to(dtype).float() @ b.to(dtype).float()

    def _add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        dtype = self.spec.product_dtype
        if dtype == total.dtype:
            total.addmm_(a, b)
        elif total.is_cuda:
            torch.addmm(total, a.to(dtype), b.to(dtype), out_dtype=total.dtype, out=total)
        else:
            total.add_(self._product(a, b))


def _zeros(shapes: Sequence[tuple[int, ...]], device: torch.device) -> list[Tensor]:
    """A tensor of each shape in float32, all of them filled at once."""
    sizes = [math.prod(shape) for shape in shapes]
    padded = [size + -size % ALIGNMENT for size in sizes]
    parts = torch.zeros(sum(padded), dtype=torch.float32, device=device).split(padded)
    return [p[:n].view(shape) for p, n, shape in zip(parts, sizes, shapes, strict=True)]


def _check_backward(by_output: Tensor) -> None:
    """Gradients are recorded in a backward pass only to be differentiated again."""
    if torch.is_grad_enabled():
        raise unavailable(SECOND)
    if is_batched(by_output):
        raise unavailable(BATCHED)


class _Bind(torch.autograd.Function):
    """Connects what the steps of a solve share to their derivatives.

    Each step adds to one set of buffers in its backward, instead of returning tensors for autograd
    to add. The empty token that each step reads makes autograd call this backward when all steps of
    that backward pass are done, however many of them there were.
    """

    @staticmethod
    def forward(ctx: Any, evaluator: Evaluator, *shared: Tensor) -> Tensor:
        ctx.evaluator = evaluator
        ctx.num_shared = len(shared)
        ctx.set_materialize_grads(False)
        return shared[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, token: Tensor | None) -> tuple[Tensor | None, ...]:
        if token is None:  # no step was differentiated
            return (None,) * (1 + ctx.num_shared)
        _check_backward(token)
        return None, *ctx.evaluator.take_by_shared()


class _Step(torch.autograd.Function):
    """One evaluation of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, evaluator: Evaluator, y: Tensor, token: Tensor, *shared: Tensor
    ) -> Tensor:
        ctx.evaluator = evaluator
        # Saved so that autograd notices if one of them is changed in place before the backward.
        ctx.save_for_backward(y, *shared)
        ctx.set_materialize_grads(False)
        return evaluator.gradient(y)

    @staticmethod
    def backward(ctx: Any, by_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        y, *shared = ctx.saved_tensors
        if by_gradient is None:  # nothing depends on it
            return (None,) * (3 + len(shared))
        _check_backward(by_gradient)
        with torch.autocast(y.device.type, enabled=False):
            by_y = ctx.evaluator.vjp(by_gradient, y)
        return None, by_y, by_gradient.new_empty(0), *(None for _ in shared)
