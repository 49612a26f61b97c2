"""Finished runs read back from their directories or their records, as data frames, and the table of
their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from equipool.experiments.common import import_task
from equipool.settings import as_text
from equipool.training import Task, read_record
from equipool.training.config import FREE

METHOD, SIZE = "aggregation", "embedding"
# Settings in which runs of one method may differ.
REPEATED = {"seed", "log_every", "evaluate_every", *FREE}

# What was measured of a run: column, and name in its record.
MEASURED = {
    "steps taken": "steps", "training seconds": "training_seconds",
    "parameters": "num_parameters",
}  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """Runs of one task.

    `table` has a row per run: its `run` (a name), `method`, settings, and what was measured.
    `curves` has a row per evaluation, with the `run` and its `method`.
    """

    kind: type[Task]
    settings: list[str]  # columns of the table
    table: pd.DataFrame
    curves: pd.DataFrame
    machines: list[str]  # hardware and versions

    @property
    def varying(self) -> list[str]:
        """The settings in which the runs differ."""
        return [name for name in self.settings if self.table[name].nunique() > 1]

    def best(self) -> pd.DataFrame:
        """The best evaluation of each run by the monitored metric; one that is not finite if the
        run has no other."""
        monitor, ascending = self.kind.monitor, self.kind.lower_is_better
        return self.curves.sort_values(monitor, ascending=ascending).drop_duplicates("run")

    def last(self) -> pd.DataFrame:
        """The last evaluation of each run."""
        return self.curves.drop_duplicates("run", keep="last")


def read_runs(paths: Iterable[str | Path]) -> Runs:
    """Read the finished runs of one task.

    Args:
        paths: run directories, directories that contain some, and records. A run that is given
            twice is read once.
    """
    places = {place.resolve(): place for path in paths for place in _places(Path(path))}
    names = Counter(place.name for place in places.values())
    found = [
        asdict(read_record(place if place.is_file() else place / "record.json"))
        | {"run": place.name if names[place.name] == 1 else str(place)}
        for place in places.values()
    ]
    tasks = sorted({one["task"] for one in found})
    if len(tasks) > 1:
        raise ValueError(f"the runs are of the tasks {', '.join(tasks)}, expected one task")
    import_task(tasks[0])
    if tasks[0] not in Task.registry:
        raise ValueError(f"the runs are of {tasks[0]!r}: import the module that defines this task")
    return _frames(Task.registry[tasks[0]], found)


def _places(path: Path) -> list[Path]:
    """The finished runs and the records at a path."""
    inside = sorted(file.parent for file in path.rglob("record.json"))
    found = [path] if path.is_file() else inside
    if not found:
        raise ValueError(f"{path} contains no finished run")
    return found


def _frames(kind: type[Task], found: Sequence[dict[str, Any]]) -> Runs:
    rows, curves, machines = [], [], []
    settings: dict[str, None] = {}
    for one in found:
        same = {"run": one["run"]}
        values = one["config"]["fields"] | one["config"]["training"]
        settings |= dict.fromkeys(values)
        measured = {name: one[key] for name, key in MEASURED.items()}
        rows.append(same | {name: _cell(value) for name, value in values.items()} | measured)
        curves += [entry | entry["metrics"] | same for entry in one["curve"]]
        pieces = one["ran_on"] or [one]
        machines += [str(piece.get(name)) for piece in pieces for name in ("hardware", "versions")]
    table = pd.DataFrame(rows)
    table.insert(1, "method", _methods(table, list(settings)))
    names = ["run", "step", "training_seconds", kind.monitor, *kind.reported]
    columns = dict.fromkeys([*names, *(name for entry in curves for name in entry)])
    drawn = pd.DataFrame(curves, columns=list(columns))
    drawn["method"] = drawn["run"].map(table.set_index("run")["method"])
    machines = list(dict.fromkeys(machines))
    return Runs(kind, list(settings), table, drawn, machines)


def _cell(value: Any) -> Any:
    """A setting as a flag has it, but numbers as numbers."""
    return as_text(value) if value is None or isinstance(value, list | bool) else value


def _methods(table: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """The method of each run: its aggregation and size, and the settings that vary among runs of
    the same two. One that only varies from one aggregation to the next belongs to it."""
    same = [name for name in (METHOD, SIZE) if name in names]
    shown = [name for name in same if name == METHOD or table[name].nunique() > 1]
    found = pd.Series("", table.index)
    for _, runs in table.groupby(same, sort=False) if same else [((), table)]:
        varying = [name for name in names if name not in REPEATED and runs[name].nunique() > 1]
        found[runs.index] = label_runs(runs, [*shown, *varying])
    return found


def label_runs(table: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """These settings of each run in a line."""
    rows = table[list(names)].to_dict("records")
    words = ([f"{v}" if name == METHOD else f"{name.replace('_', ' ')} {v}"
              for name, v in row.items() if not pd.isna(v)] for row in rows)  # fmt: skip
    return [", ".join(parts) or "all runs" for parts in words]


def number(value: Any) -> str:
    """A number with three significant digits."""
    return "not finite" if pd.isna(value) else f"{value:.3g}"


def spread(values: pd.Series) -> str:
    """Mean and standard deviation.

    Example:
        >>> spread(pd.Series([1.0, 3.0])), spread(pd.Series([0.5])), spread(pd.Series([1.0, None]))
        ('2 ± 1.41', '0.5', 'not finite')
    """
    if values.isna().any() or not len(values):
        return number(float("nan"))
    return number(values.mean()) + (f" ± {number(values.std())}" if len(values) > 1 else "")


def results(runs: Runs) -> pd.DataFrame:
    """A row per method, best first: mean and deviation over its runs of the last and the best
    evaluation, and of the further metrics at the best one."""
    monitor, methods = runs.kind.monitor, runs.table.groupby("method", sort=False)
    last, best = (found.groupby("method", sort=False) for found in (runs.last(), runs.best()))
    shown = pd.DataFrame({monitor: last[monitor].agg(spread)})
    shown[f"best {monitor}"] = best[monitor].agg(spread)
    for metric in runs.kind.reported:
        shown[f"{metric} there"] = best[metric].agg(spread)
    shown["training seconds"] = methods["training seconds"].agg(spread)
    shown["runs"] = methods.size().map(str)
    order = last[monitor].mean().sort_values(ascending=runs.kind.lower_is_better)
    return shown.loc[order.index].reset_index()
