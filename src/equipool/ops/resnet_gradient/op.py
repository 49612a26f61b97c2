"""The gradient of the summed potential as one differentiable operation.

The vector-Jacobian product computes activations again where it needs them, so a solve of many steps
holds one `y` a step and nothing per element. Only of a few steps, while there is `Room`, what took
matrix products is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops.exporting import is_exporting
from equipool.ops.resnet_gradient.spec import Spec
from equipool.ops.resnet_gradient.torch import (
    Columns,
    Kept,
    Network,
    Sums,
    element_adjoints,
    element_gradient,
    element_value,
)
from equipool.ops.segments import (
    block_sum,
    blocks_are_wanted,
    make_blocks,
    segment_spread,
    segment_sum,
)

# Pre-activations at a time on the CPU, so that what is computed for them stays in its caches.
# Not too many rows either: a sum over them is taken one after the other, and loses digits.
CPU_FLOATS = 1 << 19
CPU_ROWS = 4096

# What a solve may keep, in multiples of what it holds anyhow, `x_part`, and in all: a few steps of
# a batch that a CPU takes.
KEPT_PARTS = 7
KEPT_FLOATS = 1 << 24

SECOND_GRADIENT = (
    "the gradient of the layer's gradient is not available with the fast operation: build the "
    "potential with ResNetPotential(..., factored=False)"
)


class Room:
    """What the steps of one solve may still keep for the pass back, in floats. The first steps take
    it, and the later ones compute again: memory is bounded whatever the number of steps."""

    def __init__(self, x_part: Tensor) -> None:
        eager = x_part.device.type == "cpu" and not torch.compiler.is_compiling()
        self.left = min(KEPT_PARTS * x_part.numel(), KEPT_FLOATS) if eager else 0

    def take(self, floats: int) -> bool:
        """Whether there is so much, which is then taken."""
        fits = floats <= self.left
        self.left -= floats if fits else 0
        return fits


def summed_gradient(
    spec: Spec,
    room: Room,
    y: Tensor,
    x_part: Tensor,
    from_y: Tensor,
    index: Tensor,
    from_hidden: Sequence[Tensor],
    gammas: Sequence[Tensor],
    betas: Sequence[Tensor],
) -> Tensor:
    """The derivative of `sum over a set of F(x, y)` by y, `[num_rows, K]`.

    Args:
        spec: sizes and precision.
        room: of the solve.
        y: `[num_rows, K]`.
        x_part: what x and the constants give to the pre-activations, `[N, H]`.
        from_y: `[H, K]`.
        index: row of each element, `[N]`, ascending.
        from_hidden: for each hidden layer what it gives to the layers after it.
        gammas: scales of the normalisations.
        betas: shifts of the normalisations.
    """
    tensors = (y, x_part, from_y, index, *from_hidden, *gammas, *betas)
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if is_exporting() or (torch.compiler.is_compiling() and not differentiated):
        # Plain operations, which need no equipool to be loaded.
        return _gradient(spec, False, *tensors)[0]
    kept_columns = sum(spec.sizes[:-1]) + sum(spec.sizes[1:])
    keep = differentiated and room.take(kept_columns * index.shape[0])
    return _SummedGradient.apply(spec, keep, *tensors)[0]


def summed_value(
    spec: Spec, y: Tensor, x_part: Tensor, from_y: Tensor, index: Tensor, *parameters: Tensor
) -> Tensor:
    """The potential summed over each set, `[num_rows]`. Without a graph."""
    network = _network(spec, parameters)
    y_part = _columns(spec, y @ from_y.T)
    total = y.new_zeros(y.shape[0])
    for chunk in _chunks(index, x_part):
        u = _spread(y_part, chunk.row_of, _columns(spec, x_part[chunk.rows]))
        total = _add_segments(total, chunk, element_value(network, u))
    return total


def hessian_product(
    spec: Spec,
    direction: Tensor,
    y: Tensor,
    x_part: Tensor,
    from_y: Tensor,
    index: Tensor,
    *parameters: Tensor,
) -> Tensor:
    """The derivative of `sum of direction * gradient` by y: the Hessian being symmetric, its
    product with the direction, `[num_rows, K]`. Without a graph."""
    network = _network(spec, parameters)
    y_part, y_part_dot = _columns(spec, y @ from_y.T), _columns(spec, direction @ from_y.T)
    total = _zeros_like(y_part)
    for chunk in _chunks(index, x_part):
        u = _spread(y_part, chunk.row_of, _columns(spec, x_part[chunk.rows]))
        _, by_u = element_adjoints(network, u, _spread(y_part_dot, chunk.row_of), None, None)
        total = _add_columns(total, chunk, by_u)
    return torch.cat(total, 1) @ from_y


def _gradient(
    spec: Spec,
    keep: bool,
    y: Tensor,
    x_part: Tensor,
    from_y: Tensor,
    index: Tensor,
    *parameters: Tensor,
) -> tuple[Tensor, ...]:
    """The gradient, and what is kept of each chunk."""
    network, all_kept = _network(spec, parameters), []
    y_part = _columns(spec, y @ from_y.T)
    total = _zeros_like(y_part)
    for chunk in _chunks(index, x_part):
        u = _spread(y_part, chunk.row_of, _columns(spec, x_part[chunk.rows]))
        delta, kept = element_gradient(network, u)
        total = _add_columns(total, chunk, delta)
        if keep:
            all_kept += [kept.others, *kept.by_h]
    return torch.cat(total, 1) @ from_y, *all_kept


def _vjp(
    spec: Spec,
    num_kept: int,
    by_gradient: Tensor,
    y: Tensor,
    x_part: Tensor,
    from_y: Tensor,
    index: Tensor,
    *rest: Tensor,
) -> tuple[Tensor, ...]:
    """The derivatives by y and by what follows it; the last of the tensors are what was kept."""
    parameters, kept = rest[: len(rest) - num_kept], iter(rest[len(rest) - num_kept :])
    network, num_rows, hidden = _network(spec, parameters), y.shape[0], len(spec.sizes) - 1
    points = torch.cat([by_gradient, y])
    y_parts = points @ from_y.T
    y_part_dot, y_part = _columns(spec, y_parts[:num_rows]), _columns(spec, y_parts[num_rows:])
    by_parameters = tuple(torch.zeros_like(parameter) for parameter in parameters)
    sums = _sums(spec, by_parameters)
    by_x_part = torch.empty_like(x_part)
    delta_sum, by_y_part = _zeros_like(y_part), _zeros_like(y_part)
    for chunk in _chunks(index, x_part):
        u = _spread(y_part, chunk.row_of, _columns(spec, x_part[chunk.rows]))
        u_dot = _spread(y_part_dot, chunk.row_of)
        mine = Kept(next(kept), tuple(islice(kept, hidden))) if num_kept else None
        delta, by_u = element_adjoints(network, u, u_dot, sums, mine)
        for total, part in zip(_columns(spec, by_x_part[chunk.rows]), by_u, strict=True):
            total.copy_(part)
        delta_sum = _add_columns(delta_sum, chunk, delta)
        by_y_part = _add_columns(by_y_part, chunk, by_u)
    both = torch.cat([torch.cat(delta_sum, 1), torch.cat(by_y_part, 1)])
    return both[num_rows:] @ from_y, by_x_part, both.T @ points, *by_parameters


class _SummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(spec: Spec, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _gradient(spec, keep, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        spec, _, *tensors = inputs
        kept = output[1:]
        ctx.spec, ctx.num_tensors, ctx.num_kept = spec, len(tensors), len(kept)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*tensors, *kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if by_gradient is None:  # nothing depends on it
            return (None,) * (2 + ctx.num_tensors)
        # No second gradient passes through a compiled region, so nothing is lost there.
        vjp = _vjp if torch.compiler.is_compiling() else _Vjp.apply
        # A backward pass that is run inside autocast must not round what the forward did not.
        with torch.autocast(by_gradient.device.type, enabled=False):
            by_y, by_x_part, by_from_y, *by_parameters = vjp(
                ctx.spec, ctx.num_kept, by_gradient, *ctx.saved_tensors
            )
        return None, None, by_y, by_x_part, by_from_y, None, *by_parameters

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _one_by_one(_SummedGradient.apply, info.batch_size, in_dims, inputs)


class _Vjp(torch.autograd.Function):
    @staticmethod
    def forward(spec: Spec, num_kept: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _vjp(spec, num_kept, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor) -> Any:
        raise RuntimeError(SECOND_GRADIENT)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _one_by_one(_Vjp.apply, info.batch_size, in_dims, inputs)


def _one_by_one(
    function: Callable[..., Any],
    size: int,
    in_dims: tuple[int | None, ...],
    inputs: tuple[Any, ...],
) -> tuple[Any, Any]:
    """A batch of calls, one after the other: each is large enough to fill the machine."""
    outputs = [
        function(
            *(v if d is None else v.select(d, i) for v, d in zip(inputs, in_dims, strict=True))
        )
        for i in range(size)
    ]
    stacked = tuple(torch.stack(column) for column in zip(*outputs, strict=True))
    return stacked, (0,) * len(stacked)


def _network(spec: Spec, parameters: tuple[Tensor, ...]) -> Network:
    from_hidden, gammas, betas = _sums(spec, parameters)
    return Network(
        spec.sizes, spec.scale, spec.eps, spec.product_dtype, from_hidden, gammas, betas,
        tuple(-2 * gamma for gamma in gammas), tuple(-2 * beta for beta in betas),
    )  # fmt: skip


def _sums(spec: Spec, by_parameters: tuple[Tensor, ...]) -> Sums:
    hidden = len(spec.sizes) - 1
    return Sums(
        by_parameters[:hidden], by_parameters[hidden : 2 * hidden], by_parameters[2 * hidden :]
    )


def _columns(spec: Spec, u: Tensor) -> Columns:
    return Columns(*u.tensor_split((spec.sizes[0],), dim=1))


def _zeros_like(columns: Columns) -> Columns:
    return Columns(*(part.new_zeros(part.shape) for part in columns))


def _spread(rows: Columns, index: Tensor, plus: Columns | None = None) -> Columns:
    """Give each element the row of its segment, plus something of its own."""
    spread = Columns(*(segment_spread(part, index) for part in rows))
    if plus is not None:
        for total, part in zip(spread, plus, strict=True):
            total.add_(part)
    return spread


class _Chunk(NamedTuple):
    """A run of the elements."""

    rows: slice
    row_of: Tensor  # of each element
    segments: slice | None  # the segments that they are in, where that may be looked at


def _chunks(index: Tensor, x_part: Tensor) -> Iterator[_Chunk]:
    if torch.compiler.is_compiling() or x_part.device.type != "cpu":
        yield _Chunk(slice(None), index, None)
        return
    num, most = len(index), min(max(CPU_FLOATS // x_part.shape[1], 1), CPU_ROWS)
    num_chunks = -(-num // most)
    for i in range(num_chunks):
        rows = slice(num * i // num_chunks, num * (i + 1) // num_chunks)
        here = index[rows]
        yield _Chunk(rows, here, slice(int(here[0]), int(here[-1]) + 1))


def _add_columns(total: Columns, chunk: _Chunk, values: Columns) -> Columns:
    return Columns(
        *(_add_segments(t, chunk, v.contiguous()) for t, v in zip(total, values, strict=True))
    )


def _add_segments(total: Tensor, chunk: _Chunk, values: Tensor) -> Tensor:
    """Add the sums of consecutive elements to the totals of their rows.

    The sum over a chunk is taken by itself before it is added, so that a sum over a million
    elements does not lose digits to its own size.
    """
    index, segments = chunk.row_of, chunk.segments
    if segments is None:
        if blocks_are_wanted(values.shape[0]):
            blocks = make_blocks(index, total.shape[0])
            return total + block_sum(values, blocks, total.shape[0])
        return total + segment_sum(values, index, total.shape[0])
    num_segments = segments.stop - segments.start
    total[segments] += segment_sum(values, index - segments.start, num_segments)
    return total
