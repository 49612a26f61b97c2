"""Measuring: every item becomes a row, whatever happens to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from equipool.bench.agreement import Judge
from equipool.bench.cases import Case, Precision, make_batch
from equipool.bench.models import NetworkStep, make_network
from equipool.bench.outcome import DisagreementError, Row, Status, UnavailableError
from equipool.bench.paths import PATHS, Path
from equipool.bench.precision import check_precision
from equipool.bench.presets import Item
from equipool.bench.roofline import Rates, floor
from equipool.bench.steps import LayerStep
from equipool.bench.timing import Budget, Step, release_memory, time_step, with_peak_memory


def measure_items(
    items: list[Item], device: torch.device, budget: Budget, rates: dict[Precision, Rates]
) -> Iterator[Row]:
    """The rows, one after the other. Items of the same case have to follow each other: they share
    a reference."""
    judge: Judge | None = None
    case: Case | None = None
    for item in items:
        if item.case != case:
            case, judge = item.case, Judge(item.case, device)
        assert judge is not None
        yield measure(item, judge, device, budget, rates.get(item.precision))


def measure(
    item: Item, judge: Judge, device: torch.device, budget: Budget, rates: Rates | None
) -> Row:
    """One row: timed, or why not."""
    path = PATHS[item.path]

    def row(status: Status, reason: str) -> Row:
        return Row(item.case, item.path, item.precision, item.mode, status, reason)

    try:
        check_precision(item.precision, device)
        path.check(item.case, device)
        return _measure(item, path, judge, device, budget, rates)
    except UnavailableError as error:
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
    counted = path.equilibrium and rates is not None and item.case.workload == "layer"
    return Row(
        item.case,
        item.path,
        item.precision,
        item.mode,
        "timed",
        timing=timing,
        peak_bytes=peak_bytes,
        agreement=agreement,
        floor=floor(item.case, make_batch(item.case, torch.device("cpu")), item.mode, rates)
        if counted and rates is not None
        else None,
    )


def _builder(item: Item, path: Path, device: torch.device) -> Callable[[], Step]:
    """Makes the batch, the modules and the step."""

    def build() -> Step:
        batch = make_batch(item.case, device)
        if item.case.workload == "layer":
            readout = path.build(item.case, batch).to(device)
            return path.prepare(LayerStep(readout, batch, item.mode, item.precision, path.kernels))
        network = make_network(item.case, batch, path).to(device)
        return path.prepare(NetworkStep(network, item.precision, path.kernels))

    return build


def is_out_of_memory(error: Exception) -> bool:
    """On the CPU it is an error like any other, with a message of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def now() -> str:
    """The date and time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
