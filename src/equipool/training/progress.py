"""What a run reports, and where: its log, and the display for the user."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from equipool.files import jsonable, naming, write_text

T = TypeVar("T")
SECONDS = 10.0  # between two lines about an evaluation


class Progress:
    """Shows the progress of a run. This base class shows nothing."""

    def begin(self, run: str, step: int, steps: int) -> None:
        """A run of this name starts or resumes at `step` of `steps`."""

    def advance(self, step: int) -> None:
        """The run has reached `step`. Called often."""

    def report(self, numbers: Mapping[str, float | None]) -> None:
        """The latest numbers of the run."""

    def evaluate(self, done: int, total: int | None) -> None:
        """An evaluation has done `done` of `total` parts, if that is known. Called often."""

    def end_evaluation(self) -> None:
        """The evaluation is over."""

    def message(self, text: str) -> None:
        """A message to the user."""

    def close(self) -> None:
        """Nothing more is to be shown."""


# Called with the number of parts done and their total while an evaluation is shown.
_report: ContextVar[Callable[[int, int | None], None]] = ContextVar("report")


def track(parts: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Iterate over the parts of an evaluation, and show how many are done.

    For `Task.evaluate`. Where no progress is shown it only iterates.

    Args:
        parts: batches, for instance.
        total: their number; by default `len(parts)`, if it has one.

    Example:
        >>> sum(track([1, 2, 3]))
        6
    """
    report = _report.get(lambda done, total: None)
    if total is None and isinstance(parts, Sized):
        total = len(parts)
    done = 0
    for part in parts:
        report(done, total)
        yield part
        done += 1
    report(done, total)


@contextmanager
def tracking(progress: Progress) -> Iterator[None]:
    """`track` inside the block reports to this display."""
    token = _report.set(progress.evaluate)
    try:
        yield
    finally:
        _report.reset(token)
        progress.end_evaluation()


def format_numbers(numbers: Mapping[str, float | None]) -> str:
    """Numbers on one line.

    Example:
        >>> format_numbers({"loss": 0.00012345, "steps/s": 412.3, "error": None})
        'loss 0.0001234  steps/s 412.3  error -'
    """
    return "  ".join(f"{k} -" if v is None else f"{k} {v:.4g}" for k, v in numbers.items())


class PlainProgress(Progress):
    """Prints a line per entry of the log, and a line every ten seconds of an evaluation."""

    def __init__(self) -> None:
        self._run, self._step, self._steps = "", 0, 0
        self._since: float | None = None  # of the running evaluation

    def begin(self, run: str, step: int, steps: int) -> None:
        self._run, self._steps = run, steps
        self.message(f"{run}: from step {step} to {steps}")

    def advance(self, step: int) -> None:
        self._step = step

    def report(self, numbers: Mapping[str, float | None]) -> None:
        self.message(f"{self._run}: {self._step}/{self._steps}  {format_numbers(numbers)}")

    def evaluate(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= SECONDS:
            self._since = now
            self.message(f"evaluating, {done}" + (f"/{total}" if total else " done"))

    def end_evaluation(self) -> None:
        self._since = None

    def message(self, text: str) -> None:
        print(text, flush=True)


def columns() -> tuple[Any, ...]:
    """Columns of a bar of rich: name, bar, count, elapsed and remaining time."""
    from rich import progress as rich

    return (
        rich.TextColumn("{task.description}"), rich.BarColumn(bar_width=20),
        rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TextColumn("left"),
        rich.TimeRemainingColumn(elapsed_when_finished=True),
    )  # fmt: skip


class LiveProgress(Progress):
    """Shows a bar with speed, remaining time and the latest numbers, and a second bar while the run
    is evaluated."""

    def __init__(self) -> None:
        from rich import progress

        self._bars: Any = progress.Progress(
            *columns(), progress.TextColumn("{task.fields[numbers]}"), refresh_per_second=4
        )
        self._bars.start()
        self._training: Any = None
        self._evaluation: Any = None

    def begin(self, run: str, step: int, steps: int) -> None:
        self._training = self._bars.add_task(run, total=steps, completed=step, numbers="")

    def advance(self, step: int) -> None:
        self._bars.update(self._training, completed=step)

    def report(self, numbers: Mapping[str, float | None]) -> None:
        self._bars.update(self._training, numbers=format_numbers(numbers))

    def evaluate(self, done: int, total: int | None) -> None:
        if self._evaluation is None:
            self._evaluation = self._bars.add_task("evaluating", total=total, numbers="")
        self._bars.update(self._evaluation, completed=done, total=total)

    def end_evaluation(self) -> None:
        if self._evaluation is not None:
            self._bars.remove_task(self._evaluation)
            self._evaluation = None

    def message(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._bars.stop()


def progress_for_terminal() -> Progress:
    """Bars in a terminal; lines elsewhere, or if rich is not installed."""
    if sys.stdout.isatty() and find_spec("rich") is not None:
        return LiveProgress()
    return PlainProgress()


# An entry of the log. Without an `event` it summarises training since the entry before it.
Entry = dict[str, Any]


def read_log(file: str | Path, warn: Callable[[str], None] | None = None) -> list[Entry]:
    """All entries of a log, each with its `step`; an empty list if there is no log.

    Damaged lines are left out with a warning. A last line that was cut off is left out silently:
    the process was killed while it wrote.

    Args:
        file: `log.jsonl` of a run.
        warn: is called with each warning; by default `warnings.warn`.
    """
    file = Path(file)
    if not file.exists():
        return []
    entries = []
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        entry = _parse(line)
        if entry is not None:
            entries.append(entry)
        elif number < len(lines):
            text = f"line {number} of {file} is damaged and is left out"
            warnings.warn(text, stacklevel=2) if warn is None else warn(text)
    return entries


def _parse(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line.decode())
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("step"), int) else None


class Log:
    """The log of a run, a JSON object per line. This base class keeps nothing."""

    def write(self, entry: Entry) -> None:
        """Append an entry."""

    def sync(self) -> None:
        """Wait until everything is on the disk."""

    def close(self) -> None:
        """There are no more entries."""


class LogFile(Log):
    """Appends to `log.jsonl`. Opening it at a step drops the entries of later steps, which are
    repeated. `warn` is called about damaged lines."""

    def __init__(self, file: Path, step: int, warn: Callable[[str], None]) -> None:
        self.file = file
        if file.exists():
            kept = [entry for entry in read_log(file, warn) if entry["step"] <= step]
            write_text(file, "".join(map(_line, kept)))
        with naming(file):
            self._stream = file.open("ab", buffering=0)  # survives if the process is killed

    def write(self, entry: Entry) -> None:
        content = _line(entry).encode()
        with naming(self.file):
            while content:
                content = content[self._stream.write(content) :]

    def sync(self) -> None:
        with naming(self.file):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


def _line(entry: Entry) -> str:
    return json.dumps(jsonable(entry), allow_nan=False) + "\n"
