"""Reads records: JSON lines in records/ and benchmarks/records/."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "records"
MEASUREMENTS = ROOT / "benchmarks" / "records"
STEADY = 1.3  # largest ratio of the slowest to the fastest steps of a run that was timed alone

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """A line of a record: one training run. `curve` has a list for each metric of its evaluations,
    beside `step` and `training_seconds`."""

    study: str
    label: str
    name: str
    seed: int
    steps: int
    complete: bool
    seconds: float
    training_seconds: float
    curve: dict[str, list[Any]]
    config: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, Any]
    date: str = ""
    num_parameters: int = 0
    spikes: int | None = None  # this and the next are no longer counted
    skipped: int | None = None
    together: int | None = None  # runs that shared the device
    timed_by: tuple[str, ...] = ()  # runs of the study "speed" with the same cost of a step
    inner: dict[str, list[Any]] = field(default_factory=dict)
    search: dict[str, float] = field(default_factory=dict)
    over_steps: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """The task's settings, under the names of the time of the run."""
        return self.config["fields"]

    @property
    def last_step(self) -> int:
        """Of the evaluations."""
        return self.curve["step"][-1]

    def last(self, metric: str) -> float:
        return self.curve[metric][-1]

    def selected(self, metric: str, monitor: str) -> float:
        """The metric where `monitor` is highest."""
        return self.curve[metric][self.curve[monitor].index(max(self.curve[monitor]))]


def total(runs: Sequence[Run], name: str) -> str:
    """The sum of a number over runs; `-` if one of them does not have it."""
    found = [getattr(run, name) for run in runs]
    return "-" if None in found else str(sum(found))


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def read_runs(experiment: str) -> dict[str, list[Run]]:
    """The runs of an experiment by study, with the training times of runs that had the device to
    themselves, where there are any: runs that share it say little about a method."""
    lines = [Run(**line) for line in read_lines(RECORDS / f"{experiment}.jsonl")]
    studies = group(lines, lambda run: run.study)
    alone = {run.name: seconds_per_step(run) for run in studies.get("speed", ())}
    timed = {name: [_timed(run, alone) for run in runs] for name, runs in studies.items()}
    return timed | {name: runs for name, runs in studies.items() if name == "speed"}


def _timed(run: Run, alone: dict[str, float]) -> Run:
    if not run.timed_by:
        return run
    seconds = statistics.fmean(alone[name] for name in run.timed_by)
    curve = run.curve | {"training_seconds": [step * seconds for step in run.curve["step"]]}
    return replace(run, curve=curve, training_seconds=run.steps * seconds)


def seconds_per_step(run: Run) -> float:
    """Of a run alone on its device, from its first evaluation to the last if there are two: before
    the first step kernels are compiled, which a longer run does only once as well."""
    steps, seconds = run.curve["step"], run.curve["training_seconds"]
    if len(steps) == 1:
        return run.training_seconds / run.steps
    times = zip(pairwise(steps), pairwise(seconds), strict=True)
    found = [(after - before) / (last - first) for (first, last), (before, after) in times]
    if max(found) > STEADY * min(found):
        raise ValueError(f"{run.name} took {min(found):.3g} to {max(found):.3g} seconds per step")
    return (seconds[-1] - seconds[0]) / (steps[-1] - steps[0])


def read_measurement(name: str) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The first line of a record of a benchmark, and its further lines by part."""
    header, *rows = read_lines(MEASUREMENTS / f"{name}.jsonl")
    return header, group(rows, lambda row: row.pop("part"))


def group(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    """Items by key, in the order in which the keys appear."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def ran_on(runs: Sequence[Any]) -> str:
    """A sentence about hardware and versions."""
    devices = {str(run.hardware.get("gpu", run.hardware["cpu"])) for run in runs}
    versions = {run.versions["torch"] for run in runs}
    return (
        f"{len(runs)} runs on {' and '.join(sorted(devices))}, torch "
        f"{' and '.join(sorted(versions))}."
    )
