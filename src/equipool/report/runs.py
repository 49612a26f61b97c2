"""Runs read back from their directories, finished or not, or from their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equipool.experiments.presets import import_task
from equipool.training import Task, read_log, read_record
from equipool.training.checkpoint import PARTS, RunFolder
from equipool.training.config import known_tasks
from equipool.training.evaluation import AtSteps, over_steps_file, read_over_steps

Entry = dict[str, Any]
LOSS = "training loss"  # in figures, beside the metrics of evaluations
Curve = list[tuple[int, float, float | None]]  # step, training seconds, value
Warn = Callable[[str], None] | None


@dataclass(frozen=True)
class RunResult:
    """The results of a run. A piece of it is the time from a start or resume to the next."""

    name: str
    task: str
    config: dict[str, Any]  # the `fields` of the task and the `training` settings
    complete: bool
    steps: int
    ran_on: Sequence[Entry]  # of each piece `hardware` and `versions`
    seconds: float
    training_seconds: float  # without evaluations
    num_parameters: int | None  # None for an unfinished run
    curve: Sequence[Entry]  # evaluations: `step`, `seconds`, `training_seconds`, `metrics`
    points: Sequence[Entry]  # training entries of the log, which only a run directory has
    spikes: int
    skipped: int
    # what `equipool evaluate` stored of the "best" and the "last" checkpoint
    over_steps: Mapping[str, Sequence[AtSteps]] = field(default_factory=dict)

    @property
    def kind(self) -> type[Task]:
        tasks, name = known_tasks(), self.task
        if name not in tasks:
            raise ValueError(f"{self.name} is a run of {name!r}, expected one of {sorted(tasks)}")
        return tasks[name]

    @property
    def planned_steps(self) -> int:
        return int(self.config["training"]["steps"])

    @property
    def best(self) -> Entry | None:
        finite = [entry for entry in self.curve if self.value(entry) is not None]
        choose = min if self.kind.lower_is_better else max
        return choose(finite, key=lambda entry: self.value(entry) or 0.0) if finite else None

    def value(self, entry: Entry, metric: str | None = None) -> float | None:
        """A metric of an evaluation, by default the monitored one; None if it is missing or not
        finite."""
        found: float | None = entry["metrics"].get(metric or self.kind.monitor)
        return found

    def metric_curve(self, metric: str) -> Curve:
        return [(e["step"], e["training_seconds"], self.value(e, metric)) for e in self.curve]

    def log_curve(self, *keys: str) -> Curve:
        """A number of each entry of the log, such as `"loss"` or `"inner", layer, "residual"`."""
        found: list[Any] = list(self.points)
        for key in keys:
            found = [(one or {}).get(key) for one in found]
        times = ((point["step"], point.get("training_seconds", 0.0)) for point in self.points)
        return [(*when, value) for when, value in zip(times, found, strict=True)]

    def evaluation_at(self, training_seconds: float) -> Entry | None:
        """The last evaluation within this training time."""
        within = [e for e in self.curve if e["training_seconds"] <= training_seconds]
        return within[-1] if within else None


RAN_ON = ("hardware", "versions")
RECORDED = ("task", "complete", "steps", "seconds", "training_seconds", "num_parameters",
            "curve", "spikes", "skipped")  # fmt: skip


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
    alike = (run.task, run.config, run.curve) == (other.task, other.config, other.curve)
    return alike and (bool(run.curve) or run.points == other.points)


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
        deeper = ", ".join(map(str, unread_folders(path)))
        hint = f"; try {deeper}" if deeper else ""
        raise ValueError(f"{path} contains no run and no record{hint}")
    for part in inside:
        yield from _read(part, warn)


def unread_folders(path: Path) -> list[Path]:
    """Directories of runs or records that `read_runs` does not read because they are one or two
    levels further down."""
    if path.is_file() or _is_run(path):
        return []
    below = (p for pattern in ("*", "*/*") for p in path.glob(pattern) if p.is_dir())
    return sorted(p for p in below if not _is_run(p) and not _is_run(p.parent) and _inside(p))


def _inside(path: Path) -> list[Path]:
    """The runs and record files in a directory."""
    return [p for p in sorted(path.iterdir()) if p.suffix == ".json" or _is_run(p)]


def _is_run(path: Path) -> bool:
    return RunFolder(path).config.exists()


def _from_record(file: Path, name: str | None = None, points: Sequence[Entry] = ()) -> RunResult:
    record = read_record(file)
    return RunResult(
        name=name or file.stem, config=_settings(file, record.config),
        ran_on=record.ran_on or [{name: getattr(record, name) for name in RAN_ON}], points=points,
        **{name: getattr(record, name) for name in RECORDED},
    )  # fmt: skip


def _settings(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    missing = [part for part in PARTS if part not in config]
    if missing:
        raise ValueError(f"{file} does not describe a run: its config has no {missing[0]}")
    import_task(config["task"])
    return {part: config[part] for part in PARTS}


def _from_folder(path: Path, warn: Warn) -> RunResult:
    folder = RunFolder(path)
    log = read_log(folder.log, warn)
    points = [entry for entry in log if "event" not in entry]
    finished = folder.record.exists()
    run = _from_record(folder.record, path.name, points) if finished else _unfinished(folder, log)
    searched = {which: read_over_steps(over_steps_file(path, which)) for which in ("best", "last")}
    return replace(
        run,
        over_steps={which: rows for which, rows in searched.items() if rows},
    )


def _unfinished(folder: RunFolder, log: Sequence[Entry]) -> RunResult:
    """A run without a record, from its log."""
    points = [entry for entry in log if "event" not in entry]
    curve = [entry for entry in log if entry.get("event") == "evaluation"]
    starts = [entry for entry in log if entry.get("event") in ("start", "resume")]
    last = max([*points, *curve], key=lambda entry: entry["step"], default={})
    config = folder.read_config()
    return RunResult(
        name=folder.path.name, task=config["task"], config=_settings(folder.config, config),
        complete=False, steps=last.get("step", 0), ran_on=starts,
        seconds=last.get("seconds", 0.0), training_seconds=last.get("training_seconds", 0.0),
        num_parameters=None, curve=curve, points=points,
        spikes=points[-1]["spikes"] if points else 0,
        skipped=points[-1]["skipped"] if points else 0,
    )  # fmt: skip
