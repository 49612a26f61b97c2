"""One pass forward and backward through a layer: its gradients, time and memory."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.comparison.result import Agreement
from equipool.differentiation import Differentiation
from equipool.private_torch import profiled_events
from equipool.solution import Solution


@dataclass(frozen=True, eq=False)
class Batch:
    """The arguments of a layer's call."""

    x: Tensor
    index: Tensor | None = None
    ptr: Tensor | None = None
    mask: Tensor | None = None
    dim_size: int | None = None

    def copy(self, dtype: torch.dtype) -> Batch:
        """A copy without a graph, whose elements require a gradient."""
        x = self.x.detach().clone().to(dtype).requires_grad_()
        layout = (self.index, self.ptr, self.mask)
        index, ptr, mask = (None if part is None else part.clone() for part in layout)
        return Batch(x, index, ptr, mask, self.dim_size)

    def pool(self, layer: EquilibriumAggregation) -> Tensor:
        return layer(self.x, self.index, ptr=self.ptr, mask=self.mask, dim_size=self.dim_size)

    def solve(self, layer: EquilibriumAggregation) -> Solution:
        return layer.solve(self.x, self.index, ptr=self.ptr, mask=self.mask, dim_size=self.dim_size)


@contextmanager
def fixed_draws(device: torch.device) -> Iterator[None]:
    """Random draws in the block, such as those of dropout, are the same every time."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield


class Gradient(NamedTuple):
    """The gradients of one pass."""

    parameters: Tensor  # [P] of all learned parameters, in float64
    x: Tensor  # of all elements, flat, in float64
    converged: float  # fraction of the sets
    fallback: float | None  # fraction of the sets; None for methods without a fallback


class TrainingPass:
    """Forward and backward, repeatedly, on copies of a layer and a batch, with this differentiation
    `method` and derivative of the loss by the output, `upstream [B, K]`."""

    def __init__(
        self, layer: EquilibriumAggregation, batch: Batch, upstream: Tensor, method: Differentiation
    ) -> None:
        self.layer = copy.deepcopy(layer)
        self.layer.differentiation = method
        self.batch = batch.copy(batch.x.dtype)
        self.upstream = upstream
        self.clear()

    def __call__(self) -> None:
        """Forward and backward, as in a training step."""
        self.clear()
        self._backward(self.batch.pool(self.layer))

    def clear(self) -> None:
        self.layer.zero_grad(set_to_none=True)
        self.batch.x.grad = None

    def gradient(self) -> Gradient:
        """The gradients of a pass, with the same dropout at every call, and how its solve went."""
        self.clear()
        with fixed_draws(self.batch.x.device):
            solution = self.batch.solve(self.layer)
            self._backward(solution.y)
        parts = [_flat(p, p.grad) for p in self.layer.parameters() if p.requires_grad]
        return Gradient(
            torch.cat(parts) if parts else self.upstream.new_zeros(0, dtype=torch.float64),
            _flat(self.batch.x, self.batch.x.grad),
            _fraction(solution.converged, solution.occupied),
            # The backward pass adds to it, so it is read last.
            None if solution.fallback is None else _fraction(solution.fallback, solution.occupied),
        )

    def _backward(self, y: Tensor) -> None:
        if y.requires_grad:  # without steps the output is the start, which may be a constant
            y.backward(self.upstream.to(y.dtype))


def random_projection(y: Tensor) -> Tensor:
    """The derivative by y of a sum with random weights, the same at every call, `[B, K]`."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)


def agreement(found: Tensor, exact: Tensor) -> Agreement:
    r"""$\frac{\langle g, e \rangle}{|g| |e|}$ and $\frac{|g - e|}{|e|}$ of two vectors `[n]`.

    Example:
        >>> agreement(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
        Agreement(cosine=1.0, relative_error=2.0)
    """
    # Divided by their largest components first, so that no square is out of range.
    scales = _largest(found), _largest(exact)
    if not all(map(math.isfinite, scales)):
        return Agreement(math.nan, math.nan)
    if 0.0 in scales:
        same = scales[0] == scales[1]
        return Agreement(float(same), 0.0 if same else (1.0 if scales[1] else math.inf))
    g, e = found.double() / scales[0], exact.double() / scales[1]
    cosine = float(g @ e / (g.norm() * e.norm()))
    larger = max(scales)
    difference = g * (scales[0] / larger) - e * (scales[1] / larger)
    error = float(difference.norm() / e.norm()) * (larger / scales[1])
    return Agreement(max(-1.0, min(1.0, cosine)), error)


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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _largest(vector: Tensor) -> float:
    return float(vector.double().abs().max()) if vector.numel() else 0.0


def _flat(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    """A missing gradient is zero."""
    values = torch.zeros_like(tensor) if gradient is None else gradient
    values = values.values() if values.is_nested else values
    return values.detach().double().flatten()


def _fraction(sets: Tensor | None, occupied: Tensor) -> float:
    """Of the sets that have elements."""
    assert sets is not None
    return float(sets[occupied].double().mean()) if occupied.any() else 1.0
