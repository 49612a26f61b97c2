"""Measuring: every item becomes a row, whatever happens to it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path as File

import torch
from rich.console import Console

from equipool.bench.agreement import DisagreementError, Judge
from equipool.bench.cases import Budget, Item, Preset, make_batch
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
)
from equipool.comparison.measure import peak_bytes_of
from equipool.environment import hardware, now, versions

BATCHES = 8  # of different sizes, in turn


def run_preset(
    preset: Preset, items: list[Item], device: torch.device, command: str, commit: str,
    console: Console, out: File | None = None,
) -> Record:  # fmt: skip
    """Measure items of a preset, those of a case side by side, with a progress bar. The record is
    written to `out` after every item, so that an interrupted run leaves one, too."""
    precisions = dict.fromkeys(item.precision for item in items)
    if device.type != "cuda":
        precisions.pop("tf32", None)
    rates = {precision: measure_rates(precision, device) for precision in precisions}
    record = Record(preset.name, preset.axis, command, now(), commit, versions(), hardware(device),
                    list(rates.values()), rows=[])  # fmt: skip
    with progress_bar(console, len(items)) as advance:
        for case, group in groupby(items, key=lambda item: item.case):
            judge = Judge(case, device)  # the items of a case share a reference
            for item in group:
                advance(f"{item.path} {item.precision} {item.mode}")
                known = rates.get(item.precision)
                record.rows.append(measure(item, judge, device, preset.budget, known))
                if out is not None:
                    record.write(out)
                advance(steps=1)
    return record


def measure(
    item: Item, judge: Judge, device: torch.device, budget: Budget, rates: Rates | None
) -> Row:
    """One row: a timing, or the reason why there is none."""
    path = PATHS[item.path]
    status: Status
    try:
        path.check(item.case, item.precision, device)
        return _measure(item, path, judge, device, budget, rates)
    except (UnavailableError, ImportError) as error:
        status, reason = "unavailable", str(error)
    except DisagreementError as error:
        status, reason = "disagrees", str(error)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        # on the CPU only the message tells
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            status = "out of memory"
        else:
            status, reason = "failed", f"{type(error).__name__}: {reason}"
    finally:
        release_memory(device)
    return Row(*item, status, reason)


def _measure(
    item: Item, path: Path, judge: Judge, device: torch.device, budget: Budget,
    rates: Rates | None,
) -> Row:  # fmt: skip
    case, _, precision, mode = item
    agreement = judge.judge(path, precision) if path.equilibrium else None
    release_memory(device)
    before = allocated_bytes(device)
    made: list[BatchStep] = []
    prepared: list[Step] = []

    def build_and_run() -> None:  # inputs and parameters count as memory of the step
        made.append(make_step(case, make_batch(case, device), path, mode, precision))
        prepared.append(path.prepare(made[0]))
        prepared[0]()

    peak_bytes = peak_bytes_of(build_and_run, device)
    batches = BATCHES if case.varied and not path.fixed_sizes else 1
    with_one = allocated_bytes(device)
    for seed in range(1, batches):
        made[0].add(make_batch(case, device, seed))
    before += allocated_bytes(device) - with_one  # further batches do not count
    timing = time_step(prepared[0], device, budget, batches)
    if device.type == "cuda":
        peak_bytes = max(peak_bytes, peak_with_graphs(prepared[0], batches, device, before))
    least = None
    if path.equilibrium and rates is not None and case.workload == "layer":
        elements = [batch.num_elements for batch, _ in made[0].batches]
        least = floor(case, round(sum(elements) / batches), mode, rates)
    return Row(*item, "timed", "", timing, peak_bytes, agreement, least, batches)
