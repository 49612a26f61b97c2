"""Time and memory of a step."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles

import torch

from equipool.bench.record import Timing
from equipool.comparison.measure import peak_bytes_of

Step = Callable[[], object]

MAX_REPEATS = 200


@dataclass(frozen=True)
class Budget:
    """How long to measure: so many seconds, but at least a few repeats."""

    seconds: float = 1.0
    repeats: int = 7
    warmup: int = 2


def summarize(milliseconds: list[float]) -> Timing:
    """Median, quartiles and extremes.

    Example:
        >>> summarize([1.0, 2.0, 3.0, 4.0, 10.0]).median
        3.0
    """
    twice = milliseconds * 2 if len(milliseconds) == 1 else milliseconds
    lower, median, upper = quantiles(twice, n=4, method="inclusive")
    return Timing(
        median, lower, upper, min(milliseconds), max(milliseconds), repeats=len(milliseconds)
    )


def time_step(step: Step, device: torch.device, budget: Budget) -> Timing:
    """Run a step repeatedly."""
    for _ in range(budget.warmup):
        step()
    measure = _on_cuda if device.type == "cuda" else _on_host
    (once,) = measure(step, 1)
    affordable = int(1000 * budget.seconds / max(once, 1e-6))
    return summarize(measure(step, max(budget.repeats, min(affordable, MAX_REPEATS))))


def _on_host(step: Step, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - start))
    return times


def _on_cuda(step: Step, repeats: int) -> list[float]:
    """Times between events on the device, without synchronising in between: as in a training loop,
    launching counts only where the device waits for it."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def with_peak_memory(build: Callable[[], Step], device: torch.device) -> tuple[Step, int]:
    """Build a step and run it once. Returns the step and the peak memory of tensors in bytes,
    beyond what was allocated before.

    Inputs and parameters count, and for a captured step the runs before the recording, which need
    the same memory.
    """
    release_memory(device)
    built: list[Step] = []

    def build_and_run() -> None:
        built.append(build())
        built[0]()

    peak = peak_bytes_of(build_and_run, device)
    return built[0], peak


def release_memory(device: torch.device) -> None:
    """Free what earlier measurements left behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
