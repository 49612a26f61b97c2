"""Runs that differ in nothing but their seed, taken together."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from equipool.report.runs import RunResult
from equipool.training.config import FREE

SIZE = "embedding"
ALWAYS = ("aggregation", SIZE)  # told of every group, where the task has them
# settings in which runs of a group may differ
UNTOLD = {"task.seed", *(f"training.{name}" for name in (*FREE, "log_every", "evaluate_every"))}


def settings_of(run: RunResult) -> dict[str, Any]:
    """All settings of a run, `task.` and `training.` before their names."""
    return {
        f"{part}.{name}": value
        for part, settings in (("task", "fields"), ("training", "training"))
        for name, value in run.config[settings].items()
    }


def _as_text(value: Any) -> str:
    return json.dumps(value)


def varying_settings(runs: Sequence[RunResult]) -> list[str]:
    """Names of the settings that tell groups of these runs apart."""
    every = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for settings in every for name in settings)
    return [
        name
        for name in names
        if name not in UNTOLD and len({_as_text(s.get(name)) for s in every}) > 1
    ]


def common_settings(runs: Sequence[RunResult]) -> dict[str, Any]:
    """The settings that are the same in all of these runs."""
    every = [settings_of(run) for run in runs]
    return {
        name: value
        for name, value in every[0].items()
        if len({_as_text(settings.get(name)) for settings in every}) == 1
    }


@dataclass(frozen=True)
class Group:
    """Runs with the same settings, and those of them that are worth telling."""

    settings: dict[str, Any]
    runs: tuple[RunResult, ...]

    @property
    def size(self) -> Any:
        return self.settings.get(SIZE)

    @property
    def method(self) -> str:
        """All but its size, in words."""
        parts = [
            str(value) if name == "aggregation" else f"{name} {value}"
            for name, value in self.settings.items()
            if name != SIZE
        ]
        return ", ".join(parts) or self.runs[0].task

    @property
    def lower_is_better(self) -> bool:
        return self.runs[0].kind.lower_is_better

    def finals(self) -> list[float | None]:
        return [run.final for run in self.runs]

    def mean(self) -> float | None:
        """Of the runs' last evaluations; None where one of them is not finite."""
        return mean_of(self.finals())

    def deviation(self) -> float | None:
        """Of the runs' last evaluations, with n - 1; None for a single run."""
        finite = [value for value in self.finals() if value is not None]
        if len(finite) < max(2, len(self.runs)):
            return None
        return statistics.stdev(finite)

    def best_final(self) -> float | None:
        """The last evaluation of the best run."""
        finite = [value for value in self.finals() if value is not None]
        return self._best(finite)

    def best_evaluation(self) -> float | None:
        """The best evaluation of all runs at any step, as the paper reports its best seed."""
        found = [run.value(run.best) for run in self.runs if run.best is not None]
        return self._best([value for value in found if value is not None])

    def _best(self, values: Sequence[float]) -> float | None:
        return (min if self.lower_is_better else max)(values, default=None)

    def mean_at(self, training_seconds: float) -> float | None:
        """Mean of the runs' last evaluations within so many seconds of training; None where one of
        them is not finite, or a run had none yet."""
        found = [run.evaluation_at(training_seconds) for run in self.runs]
        values = [
            None if entry is None else run.value(entry)
            for run, entry in zip(self.runs, found, strict=True)
        ]
        return mean_of(values)

    def evaluated_by(self, training_seconds: float) -> bool:
        """Whether all runs were evaluated within so many seconds of training."""
        return all(run.evaluation_at(training_seconds) is not None for run in self.runs)

    def mean_curve(self, metric: str) -> list[tuple[int, float, float]]:
        """Step, mean seconds of training and mean of the metric, at the steps at which all runs
        were evaluated."""
        by_step: dict[int, list[tuple[float, float]]] = {}
        for run in self.runs:
            for entry in run.curve:
                value = run.other_value(entry, metric)
                if value is not None:
                    by_step.setdefault(entry["step"], []).append((entry["training_seconds"], value))
        return [
            (step, statistics.fmean(s for s, _ in found), statistics.fmean(v for _, v in found))
            for step, found in sorted(by_step.items())
            if len(found) == len(self.runs)
        ]

    def final_values(self, metric: str) -> list[float | None]:
        """A metric of the runs' last evaluations."""
        return [run.other_value(run.curve[-1], metric) for run in self.runs]

    def selected_values(self, metric: str) -> list[float | None]:
        """A metric of the runs' evaluations that are best by the monitored one."""
        return [
            None if run.best is None else run.other_value(run.best, metric) for run in self.runs
        ]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None where a value is, or where there is none.

    Example:
        >>> mean_of([1.0, 2.0]), mean_of([1.0, None])
        (1.5, None)
    """
    finite = [value for value in values if value is not None]
    return statistics.fmean(finite) if values and len(finite) == len(values) else None


def group_runs(runs: Sequence[RunResult], also: Sequence[str] = ()) -> list[Group]:
    """The groups of these runs, by size, the best first. Runs that have not been evaluated are
    left out. A group tells its method and size, what differs between groups of which these are the
    same, and `also`: the settings that each method has its own value of go with its name."""
    runs = [run for run in runs if run.curve]
    names = _told(runs, also)
    groups = [
        Group(_labelled(members[0], names), tuple(members)) for members in _alike(runs, names)
    ]
    return sorted(groups, key=_order)


def _alike(runs: Sequence[RunResult], names: Sequence[str]) -> list[list[RunResult]]:
    """Runs with the same values of these settings, together."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        settings = settings_of(run)
        found.setdefault(_as_text([settings.get(name) for name in names]), []).append(run)
    return list(found.values())


def _told(runs: Sequence[RunResult], also: Sequence[str]) -> list[str]:
    present = {name: None for run in runs for name in settings_of(run)}
    always = [f"task.{name}" for name in ALWAYS if f"task.{name}" in present]
    told = {name for some in _alike(runs, always) for name in varying_settings(some)}
    told |= {f"{part}.{name}" for part in ("task", "training") for name in also}
    return always + [name for name in present if name in told and name not in always]


def _labelled(run: RunResult, names: Sequence[str]) -> dict[str, Any]:
    """By their bare names, unless a field of the task and one of the training share it."""
    settings = settings_of(run)
    bare = [name.partition(".")[2] for name in names]
    return {
        short if bare.count(short) == 1 else name: settings.get(name)
        for name, short in zip(names, bare, strict=True)
    }


def _order(group: Group) -> tuple[float, float]:
    mean = group.mean()
    size = float(group.size) if isinstance(group.size, int | float) else 0.0
    if mean is None:
        return size, math.inf
    return size, mean if group.lower_is_better else -mean
