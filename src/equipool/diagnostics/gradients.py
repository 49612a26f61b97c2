"""Accuracy and cost of each differentiation method on a batch."""

from __future__ import annotations

import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import as_count, check_part
from equipool.differentiation import Differentiation, Implicit, Truncated, Unrolled
from equipool.private_torch import profiled_events
from equipool.sets import Sets
from equipool.solution import Solution

Loss = Callable[[Tensor], Tensor]

# Up to this output size the Hessian is assembled and factored as well.
SMALL_OUTPUT = 16


class Agreement(NamedTuple):
    """How close a gradient is to the exact one. Both numbers are nan if either gradient is not
    finite."""

    cosine: float
    """Of the angle between the two; 0 if exactly one of them is zero."""

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
    """Forward and backward, the median of the repeats."""

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
    methods: Mapping[str, Differentiation] | None = None, loss: Loss | None = None,
    repeats: int = 3,
) -> tuple[GradientRow, ...]:  # fmt: skip
    """Accuracy and cost of each differentiation method on your batch.

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
        x: elements; `index`, `ptr`, `mask` and `dim_size` describe the sets as in the layer's call.
        methods: by name. Default: `usual_methods(layer)`.
        loss: maps the output `y [B, K]` to a scalar. It is called once, and all methods get its
            derivative there. Default: a sum of all components with fixed random weights.
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
    repeats = as_count("repeats", repeats, least=1)
    call: dict[str, Any] = {"index": index, "ptr": ptr, "mask": mask, "dim_size": dim_size}
    with fixed_draws(x.device), torch.inference_mode(False), torch.enable_grad():
        with torch.no_grad():
            y = copy.deepcopy(layer).solve(x.detach().clone(), **call).y
        upstream = random_projection(y) if loss is None else _derivative(loss, y)
        wide = copy.deepcopy(layer).double()
        with torch.autocast(x.device.type, enabled=False):
            step = TrainingPass(wide, Unrolled(), x.double(), call, upstream)
            *exact, _ = step.gradient()
        methods = usual_methods(layer) if methods is None else methods
        return tuple(
            _row(name, TrainingPass(layer, method, x, call, upstream), exact, repeats)
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


class TrainingPass:
    """Forward and backward, repeatedly, on copies of a layer and of elements, with this
    differentiation method, the other arguments of the layer's call, and the derivative of the loss
    with respect to the output, `upstream [B, K]`."""

    def __init__(
        self, layer: EquilibriumAggregation, method: Differentiation, x: Tensor,
        call: Mapping[str, Any], upstream: Tensor,
    ) -> None:  # fmt: skip
        self.layer = copy.deepcopy(layer)
        self.layer.differentiation = method
        self.x = x.detach().clone().requires_grad_()
        self.call = call
        self.upstream = upstream

    def __call__(self) -> None:
        """Forward and backward, as in a training step."""
        # The layer's own call, whatever that of a subclass takes.
        self.backward(EquilibriumAggregation.forward(self.layer, self.x, **self.call))

    def backward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of all learned parameters, `[P]`, and of all elements, flat, in float64."""
        inputs = [self.x, *(p for p in self.layer.parameters() if p.requires_grad)]
        found = [torch.zeros_like(one) for one in inputs]
        if y.requires_grad:  # without steps the output is the start, which may be a constant
            upstream = self.upstream.to(y.dtype)
            found = [*torch.autograd.grad(
                y, inputs, upstream, allow_unused=True, materialize_grads=True
            )]  # fmt: skip
        x, *parameters = (one.values() if one.is_nested else one for one in found)
        flat = [x.new_zeros(0), *(one.flatten() for one in parameters)]
        return torch.cat(flat).double(), x.double().flatten()

    def gradient(self) -> tuple[Tensor, Tensor, Solution]:
        """The same, with the same dropout at every call, and how the solve went."""
        with fixed_draws(self.x.device):
            solution = self.layer.solve(self.x, **self.call)
            return *self.backward(solution.y), solution


def random_projection(y: Tensor) -> Tensor:
    """The derivative with respect to y of a sum with random weights, the same at every call,
    `[B, K]`."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)


def agreement(found: Tensor, exact: Tensor) -> Agreement:
    r"""$\frac{\langle g, e \rangle}{|g| |e|}$ and $\frac{|g - e|}{|e|}$ of two vectors `[n]`.

    Example:
        >>> agreement(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
        Agreement(cosine=1.0, relative_error=2.0)
    """
    g, e = found.double(), exact.double()
    lengths = float(g.norm()), float(e.norm())
    if not all(map(math.isfinite, lengths)):
        return Agreement(math.nan, math.nan)
    if 0.0 in lengths:
        same = lengths[0] == lengths[1]
        return Agreement(float(same), 0.0 if same else (1.0 if lengths[1] else math.inf))
    cosine = float(g @ e) / (lengths[0] * lengths[1])
    return Agreement(max(-1.0, min(1.0, cosine)), float((g - e).norm()) / lengths[1])


def seconds_of(step: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Wall-clock times from call to result."""
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        step()
        _wait(device)
        times.append(time.perf_counter() - start)
    return times


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


def _derivative(loss: Loss, y: Tensor) -> Tensor:
    """The derivative of a loss with respect to the output, `[B, K]`."""
    y = y.detach().requires_grad_()
    value = loss(y)
    if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
        (derivative,) = torch.autograd.grad(value, y, allow_unused=True)
        if derivative is not None:
            return derivative
    found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise ValueError(f"loss returned {found}, expected a tensor with one number that depends on y")


def _row(
    name: str, step: TrainingPass, exact: Sequence[Tensor], repeats: int
) -> GradientRow:  # fmt: skip
    device = step.x.device
    parameters, x, solution = step.gradient()

    def fraction(sets: Tensor) -> float:
        return float(sets[solution.occupied].double().mean().nan_to_num(1.0))

    peak_bytes = peak_bytes_of(step, device)
    implicit = isinstance(step.layer.differentiation, Implicit)
    return GradientRow(
        name, agreement(parameters, exact[0]), agreement(x, exact[1]),
        statistics.median(seconds_of(step, device, repeats)), peak_bytes,
        fraction(solution.converged), fraction(solution.fallback) if implicit else None,
    )  # fmt: skip


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
