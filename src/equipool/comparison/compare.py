"""Comparison of differentiation methods on a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import as_count
from equipool.comparison.measure import (
    Batch,
    Gradient,
    TrainingPass,
    agreement,
    fixed_draws,
    peak_bytes_of,
    random_projection,
    seconds_of,
)
from equipool.comparison.result import GradientComparison, GradientRow, Seconds
from equipool.differentiation import Differentiation, Implicit, OneStep, Truncated, Unrolled
from equipool.linear_solvers import Cholesky, ConjugateGradients, Neumann

Loss = Callable[[Tensor], Tensor]

# Up to this output size the Hessian is assembled and factored as well.
SMALL_OUTPUT = 16


def compare_gradients(
    layer: EquilibriumAggregation, x: Tensor, index: Tensor | None = None, *,
    ptr: Tensor | None = None, mask: Tensor | None = None, dim_size: int | None = None,
    methods: Mapping[str, Differentiation] | Iterable[Differentiation] | None = None,
    loss: Loss | None = None, repeats: int = 3,
) -> GradientComparison:  # fmt: skip
    """Accuracy and cost of each differentiation method on your batch.

    The exact gradient is that of the layer's output, converged or not: through every step, in
    float64, on a copy of the layer. Each method is compared with it by the angle and the relative
    error, for all learned parameters together and for the elements. Time covers forward and
    backward; peak memory is the most that tensors held in them beyond what was held before. What a
    solver treats as a constant, such as the step sizes of `SafeguardedNesterov`, is constant here,
    too.

    An implicit gradient is that of the minimum, not of the steps towards it: if the search has not
    converged, the two differ by definition, and the last two columns count. If the potential has
    dropout, in training, all methods drop the same units.

    The layer, its gradients and the random state are left unchanged.

    Args:
        layer: with the steps, the solver and the potential to be compared.
        x: elements; `index`, `ptr`, `mask` and `dim_size` describe the sets as in the layer's call.
        methods: optionally by name. Default: `usual_methods(layer)`.
        loss: maps the output `y [B, K]` to a scalar. It is called once, and all methods get its
            derivative there. Default: a sum of all components with fixed random weights.
        repeats: how often each method is timed.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> x, index = torch.randn(40, 3), torch.arange(4).repeat_interleave(10)
        >>> found = compare_gradients(layer, x, index, methods=[Unrolled(), OneStep()])
        >>> exact, rough = (row.parameters.relative_error for row in found.rows)
        >>> exact < 1e-3 < rough
        True
    """
    if not isinstance(layer, EquilibriumAggregation):
        raise TypeError(
            f"layer is {type(layer).__name__}, expected equipool.EquilibriumAggregation"
        )
    repeats = as_count("repeats", repeats, least=1)
    batch = Batch(x, index, ptr, mask, dim_size)
    with fixed_draws(x.device), torch.inference_mode(False), torch.enable_grad():
        with torch.no_grad():
            y = batch.copy(x.dtype).pool(copy.deepcopy(layer))
        upstream = random_projection(y) if loss is None else _derivative(loss, y)
        exact = exact_gradient(layer, batch, upstream)
        methods = usual_methods(layer) if methods is None else methods
        named = methods.items() if isinstance(methods, Mapping) else ((repr(m), m) for m in methods)
        rows = tuple(
            _row(name, TrainingPass(layer, batch, upstream, method), exact, repeats)
            for name, method in named
        )
    return GradientComparison(rows, _setting(layer, batch, len(y)))


def usual_methods(layer: EquilibriumAggregation) -> dict[str, Differentiation]:
    """The usual methods for a layer, by name: exact linear algebra only if its output is small.
    Implicit gradients use the layer's tolerance."""
    methods: dict[str, Differentiation] = {
        "Unrolled": Unrolled(),
        "Truncated(5)": Truncated(5),
        "OneStep": OneStep(),
        "Implicit, CG": Implicit(ConjugateGradients(), layer.steps.tolerance),
        "Implicit, Neumann": Implicit(Neumann(), layer.steps.tolerance),
    }
    if layer.out_channels <= SMALL_OUTPUT:
        methods["Implicit, Cholesky"] = Implicit(Cholesky(), layer.steps.tolerance)
    return methods


def exact_gradient(layer: EquilibriumAggregation, batch: Batch, upstream: Tensor) -> Gradient:
    """The gradient through every step, in float64."""
    layer, batch = copy.deepcopy(layer).double(), batch.copy(torch.float64)
    with torch.autocast(batch.x.device.type, enabled=False):
        return TrainingPass(layer, batch, upstream, Unrolled()).gradient()


def _derivative(loss: Loss, y: Tensor) -> Tensor:
    """The derivative of a loss by the output, `[B, K]`."""
    y = y.detach().requires_grad_()
    value = loss(y)
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss returned {found}, expected a tensor with one number")
    if value.requires_grad:
        (derivative,) = torch.autograd.grad(value, y, allow_unused=True)
        if derivative is not None:
            return derivative
    raise ValueError("loss returned a value that does not depend on y, expected one that does")


def _row(name: str, step: TrainingPass, exact: Gradient, repeats: int) -> GradientRow:
    device = step.batch.x.device
    found = step.gradient()
    step.clear()
    peak_bytes = peak_bytes_of(step, device)
    return GradientRow(
        name, agreement(found.parameters, exact.parameters) if exact.parameters.numel() else None,
        agreement(found.x, exact.x), Seconds.of(seconds_of(step, device, repeats)), peak_bytes,
        found.converged, found.fallback,
    )  # fmt: skip


def _setting(layer: EquilibriumAggregation, batch: Batch, num_sets: int) -> str:
    rows = batch.x.values() if batch.x.is_nested else batch.x
    elements = rows.shape[:-1].numel() if batch.mask is None else int(batch.mask.sum())
    dtype = str(batch.x.dtype).removeprefix("torch.")
    return (
        f"{num_sets:,} sets, {elements:,} elements, {layer.in_channels} -> {layer.out_channels}, "
        f"{layer.steps!r}, {batch.x.device.type}, {dtype}; exact: unrolled in float64"
    )
