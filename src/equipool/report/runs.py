"""Runs as they are read back: from their directories, finished or not, or from their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import equipool.experiments.registry  # noqa: F401  so that our own tasks are known
from equipool.training import Task, read_log, read_record
from equipool.training.artifacts import Examination, examination_folder, read_examination
from equipool.training.config import known_tasks, with_defaults
from equipool.training.folder import PARTS, RunFolder

Entry = dict[str, Any]


@dataclass(frozen=True)
class RunResult:
    """What there is to tell of a run.

    Each entry of `curve` is an evaluation with `step`, `seconds`, `training_seconds` and
    `metrics`. `points` are those of the log, which only a run's directory has. `ran_on` has an
    entry for each piece: `hardware`, `versions`, and `together`, the number of runs of its process
    that shared the device; of other processes it knows nothing. What only a record tells is None
    for a run that is not finished. `examinations` are what `equipool evaluate` left in the run's
    directory, of the `"best"` checkpoint and the `"last"`.
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
    def final(self) -> float | None:
        """The monitored metric at the end; None where it is not finite."""
        return self.value(self.curve[-1]) if self.curve else None

    @property
    def best(self) -> Entry | None:
        """The best evaluation."""
        finite = [entry for entry in self.curve if self.value(entry) is not None]
        if not finite:
            return None
        return (min if self.kind.lower_is_better else max)(finite, key=self._sure_value)

    def value(self, entry: Entry) -> float | None:
        """The monitored metric of an evaluation."""
        found: float | None = entry["metrics"][self.kind.monitor]
        return found

    def other_value(self, entry: Entry, metric: str) -> float | None:
        """Another metric of an evaluation; None where it is not finite, or not there."""
        found: float | None = entry["metrics"].get(metric)
        return found

    def _sure_value(self, entry: Entry) -> float:
        return float(entry["metrics"][self.kind.monitor])

    def evaluation_at(self, training_seconds: float) -> Entry | None:
        """The last evaluation within so many seconds of training."""
        within = [e for e in self.curve if e["training_seconds"] <= training_seconds]
        return within[-1] if within else None


MOST_NAMED = 5  # places of runs


def read_runs(paths: Iterable[str | Path]) -> list[RunResult]:
    """Read runs of one task.

    Args:
        paths: directories of runs, directories that hold those or records, and files of records.
            A run that is given twice is read once.
    """
    found: list[RunResult] = []
    for path in paths:
        for run in _read(Path(path)):
            if not any(_same(run, other) for other in found):
                found.append(run)
    tasks = sorted({run.task for run in found})
    if len(tasks) > 1:
        raise ValueError(f"the runs are of the tasks {', '.join(tasks)}, expected one task")
    if not any(run.curve for run in found):
        raise ValueError("none of the runs has been evaluated yet, so there is nothing to report")
    return found


def _same(run: RunResult, other: RunResult) -> bool:
    return (run.task, run.config, run.curve) == (other.task, other.config, other.curve)


def _read(path: Path) -> Iterator[RunResult]:
    if path.is_file():
        yield _from_record(path)
        return
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not there")
    if RunFolder(path).config.exists():
        yield _from_folder(path)
        return
    inside = _inside(path)
    if not inside:
        raise ValueError(
            f"{path} holds no run, no directories of runs and no records{_in_words(deeper(path))}"
        )
    for part in inside:
        yield from _read(part)


def deeper(path: Path) -> list[Path]:
    """Directories of runs or records that are further inside than `read_runs` looks, by two levels
    at most."""
    return [] if path.is_file() or _is_run(path) else list(_places(path, levels=2))


def _places(path: Path, levels: int) -> Iterator[Path]:
    """Directories below this one that hold runs or records; a run's own are none of them."""
    for folder in sorted(p for p in path.iterdir() if p.is_dir() and not _is_run(p)):
        if _inside(folder):
            yield folder
        if levels > 1:
            yield from _places(folder, levels - 1)


def _inside(path: Path) -> list[Path]:
    """The runs and the files of records that a directory holds."""
    return [p for p in sorted(path.iterdir()) if p.suffix == ".json" or _is_run(p)]


def _in_words(places: Sequence[Path]) -> str:
    more = ", ..." if len(places) > MOST_NAMED else ""
    return f"; there are some in {', '.join(map(str, places[:MOST_NAMED]))}{more}" if places else ""


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
        raise ValueError(f"{file} is not that of a run: its config has no {missing[0]}")
    filled = with_defaults(config)
    return {part: filled[part] for part in PARTS}


def _from_folder(path: Path) -> RunResult:
    found = {which: read_examination(examination_folder(path, which)) for which in ("best", "last")}
    examinations = {which: one for which, one in found.items() if one}
    return replace(_from_files(path), examinations=examinations)


def _from_files(path: Path) -> RunResult:
    folder = RunFolder(path)
    log = read_log(folder.log)
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
