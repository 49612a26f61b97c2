"""Groups of runs that differ in nothing but their seed."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from equipool.report.runs import Curve, RunResult
from equipool.training.config import FREE

METHOD, SIZE = "aggregation", "embedding"
ALWAYS = (METHOD, SIZE)  # named in every group, if the task has them
CHANGED = "changed"  # stands for all other settings when many of them vary
MOST_SETTINGS = 3  # named one by one
ABSENT = "-"  # the value of a parameter that a run does not have: its part is another
# settings in which the runs of a group may differ
IGNORED = {"task.seed", *(f"training.{name}" for name in (*FREE, "log_every", "evaluate_every"))}


def settings_of(run: RunResult) -> dict[str, Any]:
    """All settings of a run, with the prefix `task.` or `training.`."""
    task = {f"task.{name}": value for name, value in run.config["fields"].items()}
    return task | {f"training.{name}": value for name, value in run.config["training"].items()}


def varying_settings(runs: Sequence[RunResult]) -> list[str]:
    """Names of the settings in which these runs differ, the seed among them. A parameter of a part
    is left out if the choice of the part determines it: `solver.momentum` where the runs with
    the same `solver` have the same momentum, or none."""
    every = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for settings in every for name in settings)

    def count(*some: str) -> int:
        return len({json.dumps([one.get(name, ABSENT) for name in some]) for one in every})

    varying = [name for name in names if count(name) > 1]
    parts = {name: name.rpartition(".")[0] for name in varying}
    return [n for n, part in parts.items() if part not in varying or count(part, n) > count(part)]


def common_settings(runs: Sequence[RunResult]) -> dict[str, Any]:
    """The settings that are the same in all of these runs."""
    first, *others = map(settings_of, runs)
    return {k: v for k, v in first.items() if all(one.get(k, ABSENT) == v for one in others)}


class CurvePoint(NamedTuple):
    """A curve at one step: mean, smallest and largest value over the runs."""

    step: int
    seconds: float
    mean: float
    low: float
    high: float


def mean_curve(curves: Sequence[Curve]) -> list[CurvePoint]:
    """The mean of curves, at the steps that all of them have.

    Example:
        >>> mean_curve([[(5, 1.0, 2.0), (10, 2.0, 1.0)], [(5, 3.0, 4.0)]])
        [CurvePoint(step=5, seconds=2.0, mean=3.0, low=2.0, high=4.0)]
    """
    by_step: dict[int, list[tuple[float, float]]] = {}
    for curve in curves:
        for step, seconds, value in curve:
            if value is not None:
                by_step.setdefault(step, []).append((seconds, value))
    mean, points = statistics.fmean, []
    for step, found in sorted(by_step.items()):
        if len(found) == len(curves):
            times, values = zip(*found, strict=True)
            points.append(CurvePoint(step, mean(times), mean(values), min(values), max(values)))
    return points


@dataclass(frozen=True)
class Group:
    """Runs with the same settings, and those of the settings that identify the group."""

    settings: dict[str, Any]
    runs: tuple[RunResult, ...]

    @property
    def size(self) -> Any:
        return self.settings.get(SIZE)

    @property
    def method(self) -> str:
        """Its settings except the size, in one line."""
        return self.label([name for name in self.settings if name != SIZE]) or self.runs[0].task

    def label(self, names: Iterable[str]) -> str:
        """These of its settings, in one line."""
        found = ((name, self.settings[name]) for name in names if self.settings[name] != ABSENT)
        parts = (f"{v}" if name in (METHOD, CHANGED) else f"{name} {v}" for name, v in found)
        return ", ".join(part for part in parts if part)

    @property
    def lower_is_better(self) -> bool:
        return self.runs[0].kind.lower_is_better

    def mean(self) -> float | None:
        """Mean of the runs' last evaluations; None if one of them is not finite."""
        return mean_of(self.final_values())

    def best(self, values: Sequence[float | None]) -> float | None:
        """The best of these values of the monitored metric."""
        finite = [value for value in values if value is not None]
        return (min if self.lower_is_better else max)(finite, default=None)

    def best_final(self) -> float | None:
        """The last evaluation of the best run."""
        return self.best(self.final_values())

    def mean_at(self, training_seconds: float) -> float | None:
        """Mean of the runs' last evaluations within this training time; None if one of them is not
        finite, or if a run had none yet."""
        found = [(run, run.evaluation_at(training_seconds)) for run in self.runs]
        return mean_of([None if entry is None else run.value(entry) for run, entry in found])

    def final_values(self, metric: str | None = None) -> list[float | None]:
        """A metric of the runs' last evaluations, by default the monitored one."""
        return [run.value(run.curve[-1], metric) if run.curve else None for run in self.runs]

    def selected_values(self, metric: str | None = None) -> list[float | None]:
        """The same of each run's best evaluation by the monitored metric."""
        return [None if run.best is None else run.value(run.best, metric) for run in self.runs]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is None, or if there is no value."""
    finite = [value for value in values if value is not None]
    return statistics.fmean(finite) if values and len(finite) == len(values) else None


def group_runs(
    runs: Sequence[RunResult], also: Sequence[str] = (), evaluated: bool = True
) -> list[Group]:
    """Group runs by their settings, ordered by size and then best first.

    A group is identified by its aggregation and size, by the settings that vary between groups
    of the same aggregation and size, and by `also`. A setting that only varies from one method to
    the next, such as a learning rate chosen for each, is part of the method. Runs that have not
    been evaluated are left out, unless `evaluated` is False."""
    runs = [run for run in runs if run.curve or not evaluated]
    names = _identifying(runs, also)
    groups = [Group(_short_names(same[0], names), tuple(same)) for same in _alike(runs, names)]
    return sorted(groups, key=_order)


def _alike(runs: Sequence[RunResult], names: Sequence[str]) -> list[list[RunResult]]:
    """Lists of runs with the same values of these settings."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        settings = settings_of(run)
        found.setdefault(json.dumps([settings.get(name, ABSENT) for name in names]), []).append(run)
    return list(found.values())


def _identifying(runs: Sequence[RunResult], also: Sequence[str]) -> list[str]:
    present = {name: None for run in runs for name in settings_of(run)}
    always = [f"task.{name}" for name in ALWAYS if f"task.{name}" in present]
    chosen = {name for some in _alike(runs, always) for name in varying_settings(some)} - IGNORED
    chosen |= {f"{part}.{name}" for part in ("task", "training") for name in also}
    return always + [name for name in present if name in chosen and name not in always]


def _short_names(run: RunResult, names: Sequence[str]) -> dict[str, Any]:
    """Without the prefix, unless the task and the training both have a setting of this name."""
    settings, bare = settings_of(run), [name.partition(".")[2] for name in names]
    labels = [n if bare.count(s) > 1 else s for n, s in zip(names, bare, strict=True)]
    return {label: settings.get(n, ABSENT) for label, n in zip(labels, names, strict=True)}


def _order(group: Group) -> tuple[float, float]:
    mean = group.mean()
    size = float(group.size) if isinstance(group.size, int | float) else 0.0
    return size, math.inf if mean is None else mean if group.lower_is_better else -mean


def sort_key(value: Any) -> tuple[bool, float, str]:
    """Orders values: numbers by size, lists of numbers by their sum, the rest by name.

    Example:
        >>> sorted(["none", [60, 30], 10, [5]], key=sort_key)
        [[5], 10, [60, 30], 'none']
    """
    parts = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts):
        return False, float(sum(parts)), ""
    return True, 0.0, str(value)


def usual_group(groups: Sequence[Group], beside: Sequence[Group] = ()) -> Group:
    """The group from which all of them together differ in the fewest settings; of several such
    groups, the one from which the runs `beside` differ in the fewest."""
    every = [settings_of(run) for group in beside for run in group.runs]

    def distances(usual: Group) -> tuple[int, int]:
        own = settings_of(usual.runs[0])
        others = sum(own.get(name) != value for one in every for name, value in one.items())
        return sum(len(difference(group, usual)) for group in groups), others

    return min(groups, key=distances)


def difference(group: Group, other: Group) -> dict[str, Any]:
    """The settings of a group that the other does not have, or has another value of."""
    return {k: v for k, v in group.settings.items() if other.settings.get(k, ABSENT) != v}


def describe(changes: dict[str, Any]) -> str:
    """Settings in one line.

    Example:
        >>> describe({"ema_decay": None, "compile": True, "solver.momentum": 0.5})
        'ema decay none, compile on, solver momentum 0.5'
    """
    shown = {"True": "on", "False": "off", "None": "none"}
    found = ((re.sub("[._]", " ", name), v) for name, v in changes.items() if v != ABSENT)
    return ", ".join(f"{name} {shown.get(str(value), value)}" for name, value in found)


def shorten(groups: Sequence[Group]) -> list[Group]:
    """The same groups with few settings to read: if more than `MOST_SETTINGS` vary, a setting named
    `changed` lists the differences from the usual group of the same aggregation."""
    if not groups or len({*groups[0].settings} - {*ALWAYS}) <= MOST_SETTINGS:
        return list(groups)
    found = []
    for group in groups:
        same = [one for one in groups if one.settings.get(METHOD) == group.settings.get(METHOD)]
        changes = difference(group, usual_group(same, groups))
        kept = {name: group.settings[name] for name in ALWAYS if name in group.settings}
        changed = describe({k: v for k, v in changes.items() if k not in ALWAYS})
        found.append(Group(kept | {CHANGED: changed}, group.runs))
    return found
