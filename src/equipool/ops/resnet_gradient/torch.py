"""The gradient of the summed potential in torch operations, as one differentiable operation.

The vector-Jacobian product computes activations again where it needs them, so a solve of many steps
keeps one `y` per step and nothing per element. Only the first steps, within a bound on memory, keep
the results of their matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops import segments
from equipool.ops.execution import is_batched, is_exporting
from equipool.ops.resnet_gradient.folding import ReverseOnly, Spec, unavailable
from equipool.ops.resnet_gradient.network import Columns, Network, Parameters
from equipool.private_torch import is_transforming

# Pre-activations at a time on the CPU, so that what is computed for them stays in its caches.
# Not too many rows either: a sum over them is taken one after the other, and loses digits.
CPU_FLOATS = 1 << 19
CPU_ROWS = 4096

# What the steps of a solve may keep for the backward pass, in multiples of `x_part`, which a solve
# holds in any case, and in all: a few steps of a batch that fits a CPU. Later steps compute again.
KEPT_PARTS = 7
KEPT_FLOATS = 1 << 24


class TorchGradient:
    """The summed potential of one batch and its derivatives with respect to y.

    `shared` is what all steps of a solve read: `x_part [N, H]`, the contribution of x and the
    constants to the pre-activations; `from_y [H, K]`; for each hidden layer the matrix by which the
    layers after it read it; scales and shifts of the normalisations. `index [N]` is ascending.
    """

    def __init__(self, spec: Spec, shared: Sequence[Tensor], index: Tensor) -> None:
        self.spec, self.shared, self.index = spec, tuple(shared), index
        x_part = self.shared[0]
        eager = x_part.device.type == "cpu" and not torch.compiler.is_compiling()
        self._room = min(KEPT_PARTS * x_part.numel(), KEPT_FLOATS) if eager else 0

    def value(self, y: Tensor) -> Tensor:
        return summed_value(self.spec, y, self.index, self.shared)

    def gradient(self, y: Tensor) -> Tensor:
        tensors = (y, *self.shared)
        differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if is_exporting() or (torch.compiler.is_compiling() and not differentiated):
            # Plain operations, so that the program can be loaded without equipool.
            return summed_gradient(self.spec, False, y, self.index, *self.shared)[0]
        keep = differentiated and self._take_room()
        operation = _CompiledGradient if torch.compiler.is_compiling() else _EagerGradient
        return operation.apply(self.spec, keep, y, self.index, *self.shared)[0]

    def hessian_product(self, direction: Tensor, y: Tensor) -> Tensor:
        return summed_hessian_product(self.spec, direction, y, self.index, self.shared)

    def _take_room(self) -> bool:
        """Whether there is room to keep one more evaluation's products, which is then taken."""
        floats = (sum(self.spec.sizes[:-1]) + sum(self.spec.sizes[1:])) * self.index.shape[0]
        fits = floats <= self._room
        self._room -= floats if fits else 0
        return fits


def summed_value(spec: Spec, y: Tensor, index: Tensor, shared: Sequence[Tensor]) -> Tensor:
    """The potential of each row, `[num_rows, K] -> [num_rows]`."""
    x_part, from_y, *rest = shared
    network = Network(spec, Parameters.of(rest))
    y_part = _columns(spec, y @ from_y.T)
    total = y.new_zeros(y.shape[0])
    for chunk in _chunks(x_part, index):
        values = network.value(_pre_activations(spec, x_part, y_part, chunk))
        total = _add_segments(total, chunk, values)
    return total


def summed_gradient(
    spec: Spec, keep: bool, y: Tensor, index: Tensor, *shared: Tensor
) -> tuple[Tensor, ...]:
    """Its gradient in y, and what `summed_vjp` would otherwise compute again, chunk by chunk."""
    x_part, from_y, *rest = shared
    network = Network(spec, Parameters.of(rest))
    all_kept: list[Tensor] = []
    y_part = _columns(spec, y @ from_y.T)
    total = _zeros_like(y_part)
    for chunk in _chunks(x_part, index):
        delta, kept = network.gradient(_pre_activations(spec, x_part, y_part, chunk))
        total = _add_columns(total, chunk, delta)
        if keep:
            all_kept += kept
    return torch.cat(total, 1) @ from_y, *all_kept


def summed_hessian_product(
    spec: Spec, direction: Tensor, y: Tensor, index: Tensor, shared: Sequence[Tensor]
) -> Tensor:
    """The derivative of `sum of direction * gradient` by y: the Hessian is symmetric."""
    x_part, from_y, *rest = shared
    network = Network(spec, Parameters.of(rest))
    y_part, y_part_dot = (_columns(spec, rows @ from_y.T) for rows in (y, direction))
    total = _zeros_like(y_part)
    for chunk in _chunks(x_part, index):
        u = _pre_activations(spec, x_part, y_part, chunk)
        _, by_u = network.adjoints(u, _spread(y_part_dot, chunk.row_of), None, ())
        total = _add_columns(total, chunk, by_u)
    return torch.cat(total, 1) @ from_y


def summed_vjp(
    spec: Spec, num_kept: int, by_gradient: Tensor, *saved: Tensor
) -> tuple[Tensor, ...]:
    """Cotangents of y and of `shared`, given that of the gradient, what `summed_gradient` kept, y,
    the index and `shared`. A row with a zero cotangent contributes nothing, even if non-finite."""
    kept, (y, index, x_part, from_y, *rest) = iter(saved[:num_kept]), saved[num_kept:]
    live, num_rows = by_gradient.any(-1), y.shape[0]
    y = torch.where(live.unsqueeze(-1), y, 0)
    network = Network(spec, Parameters.of(rest))
    points = torch.cat([by_gradient, y])
    y_parts = points @ from_y.T
    y_part_dot, y_part = _columns(spec, y_parts[:num_rows]), _columns(spec, y_parts[num_rows:])
    by_parameters = tuple(torch.zeros_like(parameter) for parameter in rest)
    sums = Parameters.of(by_parameters)
    by_x_part = torch.empty_like(x_part)
    delta_sum, by_y_part = _zeros_like(y_part), _zeros_like(y_part)
    for chunk in _chunks(x_part, index):
        mine = tuple(islice(kept, len(spec.sizes)))
        alive: Tensor | None = live[chunk.row_of].unsqueeze(-1)
        if chunk.segments is not None and bool(live[chunk.row_of].all()):
            alive = None
        if alive is not None:
            mine = tuple(torch.where(alive, part, 0) for part in mine)
        u = _pre_activations(spec, x_part, y_part, chunk, alive)
        delta, by_u = network.adjoints(u, _spread(y_part_dot, chunk.row_of), sums, mine)
        for total, part in zip(_columns(spec, by_x_part[chunk.rows]), by_u, strict=True):
            total.copy_(part)
        delta_sum = _add_columns(delta_sum, chunk, delta)
        by_y_part = _add_columns(by_y_part, chunk, by_u)
    both = torch.cat([torch.cat(delta_sum, 1), torch.cat(by_y_part, 1)])
    return both[num_rows:] @ from_y, by_x_part, both.T @ points, *by_parameters


class _Gradient(torch.autograd.Function):
    """The operation, abstract: torch.compile traces none that has a `jvp`."""

    forward = staticmethod(summed_gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        spec, _, *tensors = inputs
        kept = output[1:]
        ctx.spec, ctx.num_tensors, ctx.num_kept = spec, len(tensors), len(kept)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*kept, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if by_gradient is None:  # nothing depends on it
            return (None,) * (2 + ctx.num_tensors)
        if not is_transforming() and is_batched(by_gradient):
            raise unavailable("batched")
        # No second gradient passes through a compiled region, so nothing is lost there.
        vjp = summed_vjp if torch.compiler.is_compiling() else _Vjp.apply
        # A backward pass that is run inside autocast must not round what the forward did not.
        with torch.autocast(by_gradient.device.type, enabled=False):
            by_y, *by_shared = vjp(ctx.spec, ctx.num_kept, by_gradient, *ctx.saved_tensors)
        return None, None, by_y, None, *by_shared


class _CompiledGradient(_Gradient):
    pass


class _OneByOne(ReverseOnly):
    """Calls in a batch are made one after the other: each is large enough to fill the machine."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        pairs = list(zip(inputs, in_dims, strict=True))
        outputs = [
            cls.apply(*(v if dim is None else v.select(dim, i) for v, dim in pairs))
            for i in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(column) for column in zip(*outputs, strict=True))
        return stacked, (0,) * len(stacked)


class _EagerGradient(_Gradient, _OneByOne):
    pass


class _Vjp(_OneByOne):
    forward = staticmethod(summed_vjp)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor) -> Any:
        raise unavailable("second")


class _Chunk(NamedTuple):
    """A run of the elements."""

    rows: slice  # which elements
    row_of: Tensor  # the row of each
    segments: slice | None  # the rows that they are in, where values may be read


def _chunks(x_part: Tensor, index: Tensor) -> Iterator[_Chunk]:
    if torch.compiler.is_compiling() or x_part.device.type != "cpu":
        yield _Chunk(slice(None), index, None)
        return
    num, most = len(index), min(max(CPU_FLOATS // x_part.shape[1], 1), CPU_ROWS)
    num_chunks = -(-num // most)
    for i in range(num_chunks):
        rows = slice(num * i // num_chunks, num * (i + 1) // num_chunks)
        here = index[rows]
        yield _Chunk(rows, here, slice(int(here[0]), int(here[-1]) + 1))


def _columns(spec: Spec, u: Tensor) -> Columns:
    return Columns(*u.tensor_split((spec.sizes[0],), dim=1))


def _pre_activations(
    spec: Spec, x_part: Tensor, y_part: Columns, chunk: _Chunk, alive: Tensor | None = None
) -> Columns:
    """The contributions of x and y; those of x alone to elements that are alive, if given."""
    u = _spread(y_part, chunk.row_of)
    for total, part in zip(u, _columns(spec, x_part[chunk.rows]), strict=True):
        total.add_(part if alive is None else torch.where(alive, part, 0))
    return u


def _zeros_like(columns: Columns) -> Columns:
    return Columns(*(part.new_zeros(part.shape) for part in columns))


def _spread(rows: Columns, index: Tensor) -> Columns:
    """Give each element the row of its segment."""
    return Columns(*(segments.segment_spread(part, index) for part in rows))


def _add_columns(total: Columns, chunk: _Chunk, values: Columns) -> Columns:
    return Columns(
        *(_add_segments(t, chunk, v.contiguous()) for t, v in zip(total, values, strict=True))
    )


def _add_segments(total: Tensor, chunk: _Chunk, values: Tensor) -> Tensor:
    """Add the sums of consecutive elements to the totals of their rows.

    The sum over a chunk is taken by itself before it is added, so that a sum over a million
    elements does not lose digits to its own size.
    """
    index, rows, num_rows = chunk.row_of, chunk.segments, total.shape[0]
    if rows is not None:
        total[rows] += segments.segment_sum(values, index - rows.start, rows.stop - rows.start)
        return total
    if segments.blocks_are_wanted(values.shape[0]):
        return total + segments.block_sum(values, segments.make_blocks(index, num_rows), num_rows)
    return total + segments.segment_sum(values, index, num_rows)
