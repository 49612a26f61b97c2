"""The gradient of the summed potential as one differentiable operation.

Forward and vector-Jacobian product keep nothing but their inputs: activations are computed again
where they are needed, so a solve of many steps holds one `y` a step and nothing per element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops.resnet_gradient.spec import Spec
from equipool.ops.resnet_gradient.torch import (
    Columns,
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

SECOND_GRADIENT = (
    "the gradient of the layer's gradient is not available with the fast operation: build the "
    "potential with ResNetPotential(..., factored=False)"
)


def summed_gradient(
    spec: Spec,
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
        y: `[num_rows, K]`.
        x_part: what x and the constants give to the pre-activations, `[N, H]`.
        from_y: `[H, K]`.
        index: row of each element, `[N]`, ascending.
        from_hidden: for each hidden layer what it gives to the layers after it.
        gammas: scales of the normalisations.
        betas: shifts of the normalisations.
    """
    tensors = (y, x_part, from_y, index, *from_hidden, *gammas, *betas)
    if _is_traced_for_its_value(tensors):
        return _gradient(spec, *tensors)
    return _SummedGradient.apply(spec, *tensors)


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
        _, by_u = element_adjoints(network, u, _spread(y_part_dot, chunk.row_of), None)
        total = _add_columns(total, chunk, by_u)
    return torch.cat(total, 1) @ from_y


def _gradient(
    spec: Spec, y: Tensor, x_part: Tensor, from_y: Tensor, index: Tensor, *parameters: Tensor
) -> Tensor:
    network = _network(spec, parameters)
    y_part = _columns(spec, y @ from_y.T)
    total = _zeros_like(y_part)
    for chunk in _chunks(index, x_part):
        u = _spread(y_part, chunk.row_of, _columns(spec, x_part[chunk.rows]))
        total = _add_columns(total, chunk, element_gradient(network, u))
    return torch.cat(total, 1) @ from_y


def _vjp(
    spec: Spec,
    by_gradient: Tensor,
    y: Tensor,
    x_part: Tensor,
    from_y: Tensor,
    index: Tensor,
    *parameters: Tensor,
) -> tuple[Tensor, ...]:
    network, num_rows = _network(spec, parameters), y.shape[0]
    points = torch.cat([by_gradient, y])
    y_parts = points @ from_y.T
    y_part_dot, y_part = _columns(spec, y_parts[:num_rows]), _columns(spec, y_parts[num_rows:])
    by_parameters = tuple(torch.zeros_like(parameter) for parameter in parameters)
    sums = _sums(spec, by_parameters)
    by_x_part = torch.empty_like(x_part)
    delta_sum, by_y_part = _zeros_like(y_part), _zeros_like(y_part)
    for chunk in _chunks(index, x_part):
        u = _spread(y_part, chunk.row_of, _columns(spec, x_part[chunk.rows]))
        delta, by_u = element_adjoints(network, u, _spread(y_part_dot, chunk.row_of), sums)
        for total, part in zip(_columns(spec, by_x_part[chunk.rows]), by_u, strict=True):
            total.copy_(part)
        delta_sum = _add_columns(delta_sum, chunk, delta)
        by_y_part = _add_columns(by_y_part, chunk, by_u)
    both = torch.cat([torch.cat(delta_sum, 1), torch.cat(by_y_part, 1)])
    return both[num_rows:] @ from_y, by_x_part, both.T @ points, *by_parameters


class _SummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(spec: Spec, *tensors: Tensor) -> Tensor:
        return _gradient(spec, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        spec, *tensors = inputs
        ctx.spec = spec
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if by_gradient is None:  # nothing depends on it
            return (None,) * (1 + len(ctx.saved_tensors))
        # No second gradient passes through a compiled region, so nothing is lost there.
        vjp = _vjp if torch.compiler.is_compiling() else _Vjp.apply
        # A backward pass that is run inside autocast must not round what the forward did not.
        with torch.autocast(by_gradient.device.type, enabled=False):
            by_y, by_x_part, by_from_y, *by_parameters = vjp(
                ctx.spec, by_gradient, *ctx.saved_tensors
            )
        return None, by_y, by_x_part, by_from_y, None, *by_parameters

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _one_by_one(_SummedGradient.apply, info.batch_size, in_dims, inputs)


class _Vjp(torch.autograd.Function):
    @staticmethod
    def forward(spec: Spec, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _vjp(spec, *tensors)

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
    if isinstance(outputs[0], Tensor):
        return torch.stack(outputs), 0
    stacked = tuple(torch.stack(column) for column in zip(*outputs, strict=True))
    return stacked, (0,) * len(stacked)


def _is_traced_for_its_value(tensors: Sequence[Tensor]) -> bool:
    """Whether a compiler or an exporter reads this and no gradient is asked for. It then gets plain
    operations, which need no equipool to be loaded."""
    if torch.compiler.is_exporting():
        return True
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return torch.compiler.is_compiling() and not differentiated


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
