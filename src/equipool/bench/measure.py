"""Measuring: every item becomes a row, whatever happens to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path as File

import torch
from rich.console import Console

from equipool.bench.agreement import DisagreementError, Judge
from equipool.bench.cases import Case, Precision, make_batch
from equipool.bench.paths import PATHS, Path, UnavailableError
from equipool.bench.presets import Item, Preset
from equipool.bench.record import Rates, Record, Row, Status
from equipool.bench.roofline import floor, measure_rates
from equipool.bench.steps import (
    PRECISIONS,
    LayerStep,
    NetworkStep,
    check_precision,
    make_network,
)
from equipool.bench.terminal import progress_bar
from equipool.bench.timing import Budget, Step, release_memory, time_step, with_peak_memory
from equipool.environment import hardware, now, versions

KERNELS = ("activate", "hidden_adjoints", "hidden_adjoint", "last_layer", "reduce_tiles")
PRODUCTS = ("gemm", "nvjet", "splitKreduce", "cutlass")


def run_preset(
    preset: Preset,
    device: torch.device,
    command: str,
    commit: str,
    console: Console,
    out: File | None = None,
) -> Record:
    """Measure all items of a preset with a progress bar. The record is written to `out` after every
    item, so that an interrupted run leaves one, too."""
    items = preset.items()
    precisions = [p for p in PRECISIONS if any(item.precision == p for item in items)]
    if device.type != "cuda":
        precisions = [p for p in precisions if p != "tf32"]
    rates: dict[Precision, Rates] = {p: measure_rates(p, device) for p in precisions}
    record = Record(preset.name, preset.axis, command, now(), commit, versions(), hardware(device),
                    list(rates.values()), rows=[])  # fmt: skip
    with progress_bar(console, len(items)) as advance:
        measured = measure_items(items, device, preset.budget, rates)
        for item in items:
            advance(f"{item.path} {item.precision} {item.mode}")
            record.rows.append(next(measured))
            if out is not None:
                record.write(out)
            advance(steps=1)
    return record


def measure_items(
    items: list[Item], device: torch.device, budget: Budget, rates: dict[Precision, Rates]
) -> Iterator[Row]:
    """One row after the other. Items of the same case must be adjacent: they share a reference."""
    for case, group in groupby(items, key=lambda item: item.case):
        judge = Judge(case, device)
        for item in group:
            yield measure(item, judge, device, budget, rates.get(item.precision))


def measure(
    item: Item, judge: Judge, device: torch.device, budget: Budget, rates: Rates | None
) -> Row:
    """One row: a timing, or the reason why there is none."""
    path = PATHS[item.path]

    def row(status: Status, reason: str) -> Row:
        return Row(item.case, item.path, item.precision, item.mode, status, reason)

    try:
        check_precision(item.precision, device)
        path.check(item.case, device)
        return _measure(item, path, judge, device, budget, rates)
    except (UnavailableError, ImportError) as error:
        return row("unavailable", str(error))
    except DisagreementError as error:
        return row("disagrees", str(error))
    except Exception as error:
        if is_out_of_memory(error):
            return row("out of memory", first_line(error))
        return row("failed", f"{type(error).__name__}: {first_line(error)}")
    finally:
        release_memory(device)


def _measure(
    item: Item, path: Path, judge: Judge, device: torch.device, budget: Budget,
    rates: Rates | None,
) -> Row:  # fmt: skip
    agreement = judge.judge(path, item.precision) if path.equilibrium else None
    step, peak_bytes = with_peak_memory(_builder(item, path, device), device)
    timing = time_step(step, device, budget)
    least = None
    if path.equilibrium and rates is not None and item.case.workload == "layer":
        elements = make_batch(item.case, torch.device("cpu")).num_elements
        least = floor(item.case, elements, item.mode, rates)
    return Row(
        item.case,
        item.path,
        item.precision,
        item.mode,
        "timed",
        timing=timing,
        peak_bytes=peak_bytes,
        agreement=agreement,
        floor=least,
    )


def _builder(item: Item, path: Path, device: torch.device) -> Callable[[], Step]:
    """Makes the batch, the modules and the step."""

    def build() -> Step:
        batch = make_batch(item.case, device)
        if item.case.workload == "layer":
            readout = path.build(item.case).to(device)
            return path.prepare(LayerStep(readout, batch, item.mode, item.precision, path.kernels))
        network = make_network(item.case, batch, path).to(device)
        return path.prepare(NetworkStep(network, item.precision, path.kernels))

    return build


def is_out_of_memory(error: Exception) -> bool:
    """On the CPU only the message tells."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def profile_layer(case: Case, precision: Precision, device: torch.device) -> dict[str, float]:
    """Microseconds by kind of kernel in one training step of the layer on a GPU."""
    from torch.profiler import ProfilerActivity, profile

    readout = PATHS["equipool"].build(case).to(device)
    step = LayerStep(readout, make_batch(case, device), "training", precision, use_kernels=True)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    totals: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        totals[kernel_kind(event.key)] += event.self_device_time_total
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def kernel_kind(kernel: str) -> str:
    """Our kernels by name, matrix products together, all else as elementwise.

    Example:
        >>> kernel_kind("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n"), kernel_kind("activate")
        ('matrix products', 'activate')
    """
    if kernel in KERNELS:
        return kernel
    return "matrix products" if any(name in kernel for name in PRODUCTS) else "elementwise"
