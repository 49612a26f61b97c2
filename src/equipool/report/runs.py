"""Runs read back from their directories, finished or not, or from their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import equipool.experiments.registry  # noqa: F401  registers our own tasks
from equipool.training import Task, read_log, read_record
from equipool.training.artifacts import Examination, examination_folder, read_examination
from equipool.training.config import known_tasks, with_defaults
from equipool.training.folder import PARTS, RunFolder

Entry = dict[str, Any]
Warn = Callable[[str], None] | None


@dataclass(frozen=True)
class RunResult:
    """The results of a run.

    `config` has the `fields` of the task and the `training` settings. Each entry of `curve` is an
    evaluation with `step`, `seconds`, `training_seconds` (without evaluations) and `metrics`.
    `points` are the training entries of the log, which only a run directory has. `ran_on` has for
    each piece, from a start or resume to the next, `hardware`, `versions` and `together`: how many
    runs of its process shared the device. `num_parameters` is None for an unfinished run.
    `examinations` are what `equipool evaluate` stored of the `"best"` and the `"last"` checkpoint.
    """

    name: str
    task: str
    config: dict[str, Any]
    complete: bool
    steps: int
    pieces: int
    ran_on: Sequence[Entry]
    seconds: float
    training_seconds: float
    num_parameters: int | None
    curve: Sequence[Entry]
    points: Sequence[Entry]
    spikes: int
    skipped: int
    examinations: Mapping[str, Examination] = field(default_factory=dict)

    @property
    def kind(self) -> type[Task]:
        """The class of its task."""
        tasks = known_tasks()
        if self.task not in tasks:
            raise ValueError(
                f"{self.name} is a run of the task {self.task!r}, expected one of {sorted(tasks)}"
            )
        return tasks[self.task]

    @property
    def planned_steps(self) -> int:
        """Steps of the whole run."""
        steps: int = self.config["training"]["steps"]
        return steps

    @property
    def progress(self) -> str:
        """Steps taken; of an unfinished run also the steps of the whole run."""
        if self.complete:
            return f"{self.steps:,}"
        return f"{self.steps:,} of {self.planned_steps:,} (unfinished)"

    @property
    def final(self) -> float | None:
        """The monitored metric of the last evaluation; None if it is not finite."""
        return self.value(self.curve[-1]) if self.curve else None

    @property
    def best(self) -> Entry | None:
        """The best evaluation."""
        finite = [entry for entry in self.curve if self.value(entry) is not None]
        choose = min if self.kind.lower_is_better else max
        return choose(finite, key=lambda entry: self.value(entry) or 0.0) if finite else None

    def value(self, entry: Entry) -> float | None:
        """The monitored metric of an evaluation."""
        found: float | None = entry["metrics"][self.kind.monitor]
        return found

    def other_value(self, entry: Entry, metric: str) -> float | None:
        """Any metric of an evaluation; None if it is missing or not finite."""
        found: float | None = entry["metrics"].get(metric)
        return found

    def metric_curve(self, metric: str) -> list[tuple[int, float, float | None]]:
        """Step, training seconds and a metric of each evaluation."""
        return [
            (entry["step"], entry["training_seconds"], self.other_value(entry, metric))
            for entry in self.curve
        ]

    def loss_curve(self) -> list[tuple[int, float, float | None]]:
        """Step, training seconds and training loss of each entry of the log."""
        return [
            (point["step"], point.get("training_seconds", 0.0), point["loss"])
            for point in self.points
            if "loss" in point
        ]

    def evaluation_at(self, training_seconds: float) -> Entry | None:
        """The last evaluation within this training time."""
        within = [e for e in self.curve if e["training_seconds"] <= training_seconds]
        return within[-1] if within else None


MOST_NAMED = 5  # directories in a message


def read_runs(paths: Iterable[str | Path], warn: Warn = None) -> list[RunResult]:
    """Read runs of one task.

    Args:
        paths: run directories, directories of them or of records, and record files. A run that is
            given twice is read once.
        warn: is called about each damaged line of a log, which is left out; by default
            `warnings.warn`.
    """
    found: list[RunResult] = []
    for path in paths:
        for run in _read(Path(path), warn):
            if not any(_same(run, other) for other in found):
                found.append(run)
    tasks = sorted({run.task for run in found})
    if len(tasks) > 1:
        raise ValueError(f"the runs are of the tasks {', '.join(tasks)}, expected one task")
    if not any(run.curve or run.points for run in found):
        raise ValueError("nothing to report: no run has logged or evaluated anything yet")
    return found


def _same(run: RunResult, other: RunResult) -> bool:
    def contents(one: RunResult) -> tuple[object, ...]:
        return one.task, one.config, one.curve, () if one.curve else one.points

    return contents(run) == contents(other)


def _read(path: Path, warn: Warn) -> Iterator[RunResult]:
    if path.is_file():
        yield _from_record(path)
        return
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist")
    if _is_run(path):
        yield _from_folder(path, warn)
        return
    inside = _inside(path)
    if not inside:
        raise ValueError(f"{path} contains no run and no record{_hint(unread_folders(path))}")
    for part in inside:
        yield from _read(part, warn)


def unread_folders(path: Path) -> list[Path]:
    """Directories of runs or records that `read_runs` does not read because they are one or two
    levels further down."""
    return [] if path.is_file() or _is_run(path) else list(_below(path, levels=2))


def _below(path: Path, levels: int) -> Iterator[Path]:
    """Directories below this one that hold runs or records; those inside a run do not count."""
    for folder in sorted(p for p in path.iterdir() if p.is_dir() and not _is_run(p)):
        if _inside(folder):
            yield folder
        if levels > 1:
            yield from _below(folder, levels - 1)


def _inside(path: Path) -> list[Path]:
    """The runs and record files in a directory."""
    return [p for p in sorted(path.iterdir()) if p.suffix == ".json" or _is_run(p)]


def _hint(folders: Sequence[Path]) -> str:
    if not folders:
        return ""
    more = ", ..." if len(folders) > MOST_NAMED else ""
    return f"; try {', '.join(map(str, folders[:MOST_NAMED]))}{more}"


def _is_run(path: Path) -> bool:
    return RunFolder(path).config.exists()


def _from_record(file: Path, name: str | None = None, points: Sequence[Entry] = ()) -> RunResult:
    record = read_record(file)
    last = {
        "hardware": record.hardware,
        "together": record.together,
        "versions": record.versions,
    }
    return RunResult(
        name=name or file.stem,
        task=record.task,
        config=_settings(file, record.config),
        complete=record.complete,
        steps=record.steps,
        pieces=record.pieces,
        ran_on=record.ran_on or [last],
        seconds=record.seconds,
        training_seconds=record.training_seconds,
        num_parameters=record.num_parameters,
        curve=record.curve,
        points=points,
        spikes=record.spikes,
        skipped=record.skipped,
    )


def _settings(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    missing = [part for part in PARTS if part not in config]
    if missing:
        raise ValueError(f"{file} does not describe a run: its config has no {missing[0]}")
    filled = with_defaults(config)
    return {part: filled[part] for part in PARTS}


def _from_folder(path: Path, warn: Warn) -> RunResult:
    found = {which: read_examination(examination_folder(path, which)) for which in ("best", "last")}
    examinations = {which: one for which, one in found.items() if one}
    return replace(_from_files(path, warn), examinations=examinations)


def _from_files(path: Path, warn: Warn) -> RunResult:
    folder = RunFolder(path)
    log = read_log(folder.log, warn)
    points = [entry for entry in log if "event" not in entry]
    if folder.record.exists():
        return _from_record(folder.record, path.name, points)
    curve = [entry for entry in log if entry.get("event") == "evaluation"]
    starts = [entry for entry in log if entry.get("event") in ("start", "resume")]
    last = max([*points, *curve], key=lambda entry: entry["step"], default={})
    config = folder.read_config()
    return RunResult(
        name=path.name,
        task=config["task"],
        config=_settings(folder.config, config),
        complete=False,
        steps=last.get("step", 0),
        pieces=len(starts),
        ran_on=starts,
        seconds=last.get("seconds", 0.0),
        training_seconds=last.get("training_seconds", 0.0),
        num_parameters=None,
        curve=curve,
        points=points,
        spikes=points[-1]["spikes"] if points else 0,
        skipped=points[-1]["skipped"] if points else 0,
    )
