"""Accuracy and cost of each differentiation method on a batch."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_part
from equipool.differentiation import Differentiation, Implicit, Truncated, Unrolled
from equipool.private_torch import profiled_events
from equipool.sets import Sets

# Up to this output size the Hessian is assembled and factored as well.
SMALL_OUTPUT = 16


class Agreement(NamedTuple):
    """How close a gradient is to the exact one."""

    cosine: float
    """Of the angle between the two; 0 if exactly one of them is zero, nan if one is not finite."""

    relative_error: float
    """Norm of the difference over the norm of the exact one; infinite if the exact one is zero and
    the other is not."""


@dataclass(frozen=True)
class GradientRow:
    """One differentiation method."""

    method: str
    """Its name."""

    parameters: Agreement
    """Of the gradient with respect to all learned parameters."""

    x: Agreement
    """Of the gradient with respect to the elements."""

    seconds: float
    """Forward and backward, the mean of the repeats."""

    peak_bytes: int
    """The most that tensors held during forward and backward, beyond what was held before."""

    converged: float
    """Fraction of the sets whose residual is within the layer's tolerance."""

    fallback: float | None
    """Fraction of the sets whose gradient is not the implicit one; None for methods that are not
    implicit."""


def compare_gradients(
    layer: EquilibriumAggregation, x: Tensor, index: Tensor | Sets | None = None, *,
    ptr: Tensor | None = None, mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None,
    methods: Mapping[str, Differentiation] | None = None, repeats: int = 3,
) -> tuple[GradientRow, ...]:  # fmt: skip
    """Accuracy and cost of each differentiation method on your batch. The gradients are those of a
    sum of the outputs with fixed random weights.

    The exact gradient is that of the layer's output, converged or not: through every step, in
    float64, on a copy of the layer. Each method is compared with it by the angle and the relative
    error, for all learned parameters together and for the elements. What a solver treats as a
    constant, such as the step sizes of `SafeguardedNesterov`, is constant here, too.

    An implicit gradient is that of the minimum, not of the steps towards it: if the search has not
    converged, the two differ by definition; see `converged` and `fallback`. If the potential has
    dropout, in training, all methods drop the same units.

    The layer, its gradients and the random state are left unchanged.

    Args:
        layer: with the steps, the solver and the potential to be compared.
        x: elements; `index`, `ptr`, `mask`, `dim_size` and `weight` as in the layer's call.
        methods: by name. Default: `usual_methods(layer)`.
        repeats: how often each method is timed.

    Returns:
        A row for each method.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> x, index = torch.randn(40, 3), torch.arange(4).repeat_interleave(10)
        >>> methods = {"exact": equipool.Unrolled(), "rough": equipool.Truncated(1)}
        >>> rows = equipool.diagnostics.compare_gradients(layer, x, index, methods=methods)
        >>> exact, rough = (row.parameters.relative_error for row in rows)
        >>> exact < 1e-3 < rough
        True
    """
    check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
    call: dict[str, Any] = {
        "index": index, "ptr": ptr, "mask": mask, "dim_size": dim_size, "weight": weight,
    }  # fmt: skip
    with fixed_draws(x.device), torch.inference_mode(False), torch.enable_grad():
        wide = copy.deepcopy(layer).double()
        wide.differentiation = Unrolled()
        doubled = x.detach().clone().double().requires_grad_()
        with torch.autocast(x.device.type, enabled=False):
            exact = gradients(wide, doubled, wide.solve(doubled, **call).y)
        methods = usual_methods(layer) if methods is None else methods
        return tuple(
            _row(name, method, copy.deepcopy(layer), x, call, exact, repeats)
            for name, method in methods.items()
        )


def usual_methods(layer: EquilibriumAggregation) -> dict[str, Differentiation]:
    """The usual methods for a layer, by name: exact linear algebra only if its output is small.
    Implicit gradients use the layer's tolerance."""
    methods: dict[str, Differentiation] = {
        "Unrolled": Unrolled(),
        "Truncated(5)": Truncated(5),
        "Truncated(1)": Truncated(1),
        "Implicit, CG": Implicit("cg", layer.steps.tolerance),
    }
    if layer.out_channels <= SMALL_OUTPUT:
        methods["Implicit, Cholesky"] = Implicit("cholesky", layer.steps.tolerance)
    return methods


def gradients(layer: EquilibriumAggregation, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of all learned parameters, `[P]`, and of all elements, flat, in float64."""
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
    inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]
    found = [torch.zeros_like(one) for one in inputs]
    if y.requires_grad:  # without steps the output is the start, which may be a constant
        found = [*torch.autograd.grad(
            y, inputs, upstream, allow_unused=True, materialize_grads=True
        )]  # fmt: skip
    by_x, *parameters = (one.values() if one.is_nested else one for one in found)
    flat = [by_x.new_zeros(0), *(one.flatten() for one in parameters)]
    return torch.cat(flat).double(), by_x.double().flatten()


def agreement(found: Tensor, exact: Tensor) -> Agreement:
    r"""$\frac{\langle g, e \rangle}{|g| |e|}$ and $\frac{|g - e|}{|e|}$ of two vectors `[n]`.

    Example:
        >>> agreement(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
        Agreement(cosine=1.0, relative_error=2.0)
    """
    g, e = found.double(), exact.double()
    length, exact_length = float(g.norm()), float(e.norm())
    if length == exact_length == 0:
        return Agreement(1.0, 0.0)
    product = length * exact_length
    cosine = float(g @ e) / product if product else 0.0
    return Agreement(cosine, float((g - e).norm()) / exact_length if exact_length else math.inf)


def peak_bytes_of(step: Callable[[], object], device: torch.device) -> int:
    """The peak of allocated bytes during a pass beyond those allocated before it: the graph,
    temporary tensors and gradients. On the CPU it is read from the profiler, on a GPU from the
    allocator."""
    if device.type != "cuda":
        return _peak_on_host(step)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _peak_on_host(step: Callable[[], object]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler's own messages
    activities = [torch.profiler.ProfilerActivity.CPU]
    # Without acc_events some versions warn about the events of further cycles.
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        step()
    events = profiled_events(profile)
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@contextmanager
def fixed_draws(device: torch.device) -> Iterator[None]:
    """Random draws in the block, such as those of dropout, are the same every time."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield


def _row(
    name: str, method: Differentiation, layer: EquilibriumAggregation, x: Tensor,
    call: dict[str, Any], exact: tuple[Tensor, Tensor], repeats: int,
) -> GradientRow:  # fmt: skip
    layer.differentiation, x = method, x.detach().clone().requires_grad_()
    with fixed_draws(x.device):  # the same dropout for each method
        solution = layer.solve(x, **call)
        parameters, by_x = gradients(layer, x, solution.y)

    def step() -> None:
        # The layer's own call, whatever that of a subclass takes.
        gradients(layer, x, EquilibriumAggregation.forward(layer, x, **call))

    def fraction(sets: Tensor) -> float:
        return float(sets[solution.occupied].double().mean().nan_to_num(1.0))

    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    fallback = fraction(solution.fallback) if isinstance(method, Implicit) else None
    return GradientRow(
        name, agreement(parameters, exact[0]), agreement(by_x, exact[1]),
        timer.timeit(repeats).mean, peak_bytes_of(step, x.device),
        fraction(solution.converged), fallback,
    )  # fmt: skip
