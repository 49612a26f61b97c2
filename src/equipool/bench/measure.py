"""Measuring: every item becomes a row, whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path as File

import torch
from rich.console import Console

from equipool.bench.agreement import DisagreementError, Judge
from equipool.bench.cases import Budget, Item, Precision, Preset, make_batch
from equipool.bench.paths import PATHS, Path, UnavailableError
from equipool.bench.record import Rates, Record, Row, Status
from equipool.bench.steps import BatchStep, make_step
from equipool.bench.terminal import progress_bar
from equipool.bench.timing import (
    Step,
    allocated_bytes,
    floor,
    measure_rates,
    peak_with_graphs,
    release_memory,
    time_step,
    with_peak_memory,
)
from equipool.environment import hardware, now, versions

BATCHES = 8  # of different sizes, in turn


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
    precisions = dict.fromkeys(item.precision for item in items)
    if device.type != "cuda":
        precisions.pop("tf32", None)
    rates = {precision: measure_rates(precision, device) for precision in precisions}
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
        return Row(*item, status, reason)

    try:
        path.check(item.case, item.precision, device)
        return _measure(item, path, judge, device, budget, rates)
    except (UnavailableError, ImportError) as error:
        return row("unavailable", str(error))
    except DisagreementError as error:
        return row("disagrees", str(error))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        # on the CPU only the message tells
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return row("out of memory", reason)
        return row("failed", f"{type(error).__name__}: {reason}")
    finally:
        release_memory(device)


def _measure(
    item: Item, path: Path, judge: Judge, device: torch.device, budget: Budget,
    rates: Rates | None,
) -> Row:  # fmt: skip
    case, _, precision, mode = item
    agreement = judge.judge(path, precision) if path.equilibrium else None
    made: list[BatchStep] = []

    def build() -> Step:
        made.append(make_step(case, make_batch(case, device), path, mode, precision))
        return path.prepare(made[0])

    release_memory(device)
    before = allocated_bytes(device)
    step, peak_bytes = with_peak_memory(build, device)
    batches = BATCHES if case.varied and not path.fixed_sizes else 1
    with_one = allocated_bytes(device)
    for seed in range(1, batches):
        made[0].add(make_batch(case, device, seed))
    before += allocated_bytes(device) - with_one  # further batches do not count
    timing = time_step(step, device, budget, batches)
    if device.type == "cuda":
        peak_bytes = max(peak_bytes, peak_with_graphs(step, batches, device, before))
    least = None
    if path.equilibrium and rates is not None and case.workload == "layer":
        elements = [batch.num_elements for batch, _ in made[0].batches]
        least = floor(case, round(sum(elements) / batches), mode, rates)
    return Row(*item, "timed", "", timing, peak_bytes, agreement, least, batches)
