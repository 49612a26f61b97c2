"""The gradient of the summed potential as one differentiable operation.

Forward and vector-Jacobian product keep nothing but their inputs: activations are computed again
where they are needed, so a solve of many steps holds one `y` a step and nothing per element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from equipool.ops.resnet_gradient.spec import Spec
from equipool.ops.resnet_gradient.torch import Network, element_adjoints, element_gradient
from equipool.ops.segments import (
    block_sum,
    blocks_are_wanted,
    make_blocks,
    segment_spread,
    segment_sum,
)

# Pre-activations at a time on the CPU, so that what is computed for them stays in its caches.
# Not too many rows either: a sum over them is taken one after the other, and loses digits.
CPU_FLOATS = 1 << 20
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


def _gradient(
    spec: Spec, y: Tensor, x_part: Tensor, from_y: Tensor, index: Tensor, *parameters: Tensor
) -> Tensor:
    network = _network(spec, parameters)
    y_part = y @ from_y.T
    total = torch.zeros_like(y_part)
    for rows in _chunks(x_part):
        u = segment_spread(y_part, index[rows]).add_(x_part[rows])
        total = _add_segments(total, index[rows], element_gradient(network, u))
    return total @ from_y


def _vjp(
    spec: Spec,
    by_gradient: Tensor,
    y: Tensor,
    x_part: Tensor,
    from_y: Tensor,
    index: Tensor,
    *parameters: Tensor,
) -> tuple[Tensor, ...]:
    network = _network(spec, parameters)
    num_rows, points = y.shape[0], torch.cat([by_gradient, y])
    y_parts = points @ from_y.T
    by_x_part = torch.empty_like(x_part)
    delta_sum, by_y_part = y_parts.new_zeros(2, num_rows, y_parts.shape[1])
    by_parameters: tuple[Tensor, ...] = ()
    for rows in _chunks(x_part):
        here = index[rows]
        us = segment_spread(y_parts, torch.cat([here, here + num_rows]))
        us[here.shape[0] :].add_(x_part[rows])
        adjoints = element_adjoints(network, us)
        delta, by_u = adjoints.by_elements[: here.shape[0]], adjoints.by_elements[here.shape[0] :]
        by_x_part[rows] = by_u
        by_y_part = _add_segments(by_y_part, here, by_u)
        delta_sum = _add_segments(delta_sum, here, delta)
        of_rows = (*adjoints.from_hidden, *adjoints.gammas, *adjoints.betas)
        if rows.start:
            of_rows = tuple(a.add_(b) for a, b in zip(by_parameters, of_rows, strict=True))
        by_parameters = of_rows
    if not by_parameters:  # there are no elements
        by_parameters = tuple(torch.zeros_like(parameter) for parameter in parameters)
    by_from_y = delta_sum.T @ by_gradient + by_y_part.T @ y
    return by_y_part @ from_y, by_x_part, by_from_y, *by_parameters


class _SummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(spec: Spec, *tensors: Tensor) -> Tensor:
        return _gradient(spec, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        spec, *tensors = inputs
        ctx.spec = spec
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, by_gradient: Tensor) -> tuple[Tensor | None, ...]:
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
    hidden = len(spec.sizes) - 1
    from_hidden, gammas = parameters[:hidden], parameters[hidden : 2 * hidden]
    return Network(
        spec.sizes, spec.scale, spec.eps, spec.product_dtype,
        from_hidden, gammas, parameters[2 * hidden :],
    )  # fmt: skip


def _chunks(x_part: Tensor) -> Iterator[slice]:
    if torch.compiler.is_compiling() or x_part.device.type != "cpu":
        yield slice(None)
        return
    rows = min(max(CPU_FLOATS // x_part.shape[1], 1), CPU_ROWS)
    for start in range(0, x_part.shape[0], rows):
        yield slice(start, start + rows)


def _add_segments(total: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Add the sums of consecutive elements to the totals of their rows.

    The sum over a chunk is taken by itself before it is added, so that a sum over a million
    elements does not lose digits to its own size.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        if blocks_are_wanted(values.shape[0]):
            blocks = make_blocks(index, total.shape[0])
            return total + block_sum(values, blocks, total.shape[0])
        return total + segment_sum(values, index, total.shape[0])
    first, last = int(index[0]), int(index[-1])
    total[first : last + 1] += segment_sum(values, index - first, last - first + 1)
    return total
