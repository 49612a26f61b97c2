"""Comparison of differentiation methods on a batch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.comparison.agreement import agreement
from equipool.comparison.cost import peak_bytes_of, seconds_of
from equipool.comparison.passes import (
    Batch,
    Gradient,
    Loss,
    TrainingPass,
    random_projection,
    upstream_of,
)
from equipool.comparison.result import GradientComparison, GradientRow
from equipool.differentiation import Differentiation, Implicit, OneStep, Truncated, Unrolled
from equipool.linear_solvers import Cholesky, ConjugateGradients, Neumann

# Up to this output size the Hessian is written out and factored as well.
SMALL_OUTPUT = 16


def compare_gradients(
    layer: EquilibriumAggregation,
    x: Tensor,
    index: Tensor | None = None,
    *,
    ptr: Tensor | None = None,
    mask: Tensor | None = None,
    dim_size: int | None = None,
    ways: Mapping[str, Differentiation] | Iterable[Differentiation] | None = None,
    loss: Loss | None = None,
    repeats: int = 3,
) -> GradientComparison:
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
        x: elements; this and the arguments of the layout are those of the layer.
        index: the set of each element.
        ptr: instead of index, where each set begins and ends.
        mask: True for real elements.
        dim_size: the number of sets.
        ways: the methods, optionally by name. Default: `usual_ways(layer)`.
        loss: maps the output `y [B, K]` to a scalar. It is called once, and all methods get its
            derivative there. Default: a sum of all components with fixed random weights.
        repeats: how often each method is timed.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> x, index = torch.randn(40, 3), torch.arange(4).repeat_interleave(10)
        >>> found = compare_gradients(layer, x, index, ways=[Unrolled(), OneStep()])
        >>> exact, rough = (row.parameters.relative_error for row in found.rows)
        >>> exact < 1e-3 < rough
        True
    """
    if not isinstance(layer, EquilibriumAggregation):
        raise TypeError(
            f"layer is {type(layer).__name__}, expected equipool.EquilibriumAggregation; for that "
            "of equipool.pyg, give its .layer"
        )
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats is {repeats!r}, expected an int of 1 or more")
    batch = Batch(x, index, ptr, mask, dim_size)
    with (
        torch.random.fork_rng([x.device] if x.is_cuda else []),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        upstream = _upstream(layer, batch, loss)
        exact = exact_gradient(layer, batch, upstream)
        chosen = _named(usual_ways(layer) if ways is None else ways)
        rows = tuple(_row(layer, batch, upstream, exact, *way, repeats) for way in chosen)
    return GradientComparison(rows, _setting(layer, batch, upstream.shape[0]))


def usual_ways(layer: EquilibriumAggregation) -> dict[str, Differentiation]:
    """The usual methods for a layer, by name: exact linear algebra only if its output is small.
    Implicit gradients use the layer's tolerance."""
    ways: dict[str, Differentiation] = {
        "Unrolled": Unrolled(),
        "Truncated(5)": Truncated(5),
        "OneStep": OneStep(),
        "Implicit, CG": Implicit(ConjugateGradients(), layer.steps.tolerance),
        "Implicit, Neumann": Implicit(Neumann(), layer.steps.tolerance),
    }
    if layer.out_channels <= SMALL_OUTPUT:
        ways["Implicit, Cholesky"] = Implicit(Cholesky(), layer.steps.tolerance)
    return ways


def exact_gradient(layer: EquilibriumAggregation, batch: Batch, upstream: Tensor) -> Gradient:
    """Through every step, in float64."""
    with torch.autocast(batch.x.device.type, enabled=False), same_draws(batch):
        return with_way(layer, batch, upstream, Unrolled(), torch.float64).gradient()


@contextmanager
def same_draws(batch: Batch) -> Iterator[None]:
    """What is drawn in the block, such as the units that dropout keeps, is the same every time."""
    with torch.random.fork_rng([batch.x.device] if batch.x.is_cuda else []):
        torch.manual_seed(0)
        yield


def with_way(
    layer: EquilibriumAggregation,
    batch: Batch,
    upstream: Tensor,
    way: Differentiation,
    dtype: torch.dtype | None = None,
) -> TrainingPass:
    """A pass of its own that differentiates in a given way."""
    training_pass = TrainingPass(layer, batch, upstream, dtype)
    training_pass.layer.differentiation = way
    return training_pass


def _upstream(layer: EquilibriumAggregation, batch: Batch, loss: Loss | None) -> Tensor:
    with torch.no_grad(), same_draws(batch):
        y = batch.own(batch.x.dtype).pool(copy.deepcopy(layer))
    return random_projection(y) if loss is None else upstream_of(loss, y)


def _named(
    ways: Mapping[str, Differentiation] | Iterable[Differentiation],
) -> list[tuple[str, Differentiation]]:
    if isinstance(ways, Mapping):
        return list(ways.items())
    return [(repr(way), way) for way in ways]


def _row(
    layer: EquilibriumAggregation,
    batch: Batch,
    upstream: Tensor,
    exact: Gradient,
    name: str,
    way: Differentiation,
    repeats: int,
) -> GradientRow:
    device = batch.x.device
    training_pass = with_way(layer, batch, upstream, way)
    with same_draws(batch):
        found = training_pass.gradient()
    training_pass.clear()
    peak_bytes = peak_bytes_of(training_pass, device)
    seconds = seconds_of(training_pass, device, repeats)
    return GradientRow(
        name,
        agreement(found.parameters, exact.parameters) if exact.parameters.numel() else None,
        agreement(found.x, exact.x),
        seconds,
        peak_bytes,
        found.converged,
        found.fallback,
    )


def _setting(layer: EquilibriumAggregation, batch: Batch, num_sets: int) -> str:
    if batch.mask is not None:
        elements = int(batch.mask.sum())
    else:
        rows = batch.x.values() if batch.x.is_nested else batch.x
        elements = rows.shape[:-1].numel()
    budget = layer.steps.budget(layer.training)
    steps = f"T = {budget.num_steps}"
    if budget.stop_at is not None:
        steps = f"at most {budget.num_steps} steps to {budget.stop_at:g}"
    dtype = str(batch.x.dtype).removeprefix("torch.")
    return (
        f"{num_sets:,} sets, {elements:,} elements, {layer.in_channels} -> {layer.out_channels}, "
        f"{steps}, {batch.x.device.type}, {dtype}; exact: unrolled in float64"
    )
