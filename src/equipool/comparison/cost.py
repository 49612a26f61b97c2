"""Time and memory of a pass."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Seconds:
    """Of the repeats of a pass."""

    median: float
    fastest: float
    slowest: float


def seconds_of(step: Callable[[], object], device: torch.device, repeats: int) -> Seconds:
    """Wall-clock time from call to result."""
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        step()
        _wait(device)
        times.append(time.perf_counter() - start)
    return Seconds(statistics.median(times), min(times), max(times))


def peak_bytes_of(step: Callable[[], object], device: torch.device) -> int:
    """The most bytes that tensors held during a pass beyond what was held before it: what the graph
    keeps, what operations need meanwhile, and the gradients. On the CPU this is read from the
    profiler's account of allocations, on a GPU from the allocator's."""
    return _peak_on_cuda(step) if device.type == "cuda" else _peak_on_host(step)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_on_cuda(step: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _peak_on_host(step: Callable[[], object]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would announce itself
    activities = [torch.profiler.ProfilerActivity.CPU]
    # Some versions warn unless told what to do with the events of further cycles.
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        step()
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak
