"""What a run reports, and where: its log, TensorBoard, and the display for the user."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from equipool.training.checkpoint import jsonable, naming, write_atomically

T = TypeVar("T")
SECONDS = 10.0  # between two lines about an evaluation


class Progress:
    """Shows the progress of one or more runs, each with its name. This base class shows nothing."""

    def begin(self, run: str, step: int, steps: int) -> None:
        """A run starts or resumes at `step` of `steps`."""

    def advance(self, run: str, step: int) -> None:
        """A run has reached `step`. Called often."""

    def report(self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]) -> None:
        """The latest numbers of a run."""

    def evaluate(self, run: str, done: int, total: int | None) -> None:
        """An evaluation has done `done` of `total` parts, if that is known. Called often."""

    def end_evaluation(self, run: str) -> None:
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
def tracking(progress: Progress, run: str) -> Iterator[None]:
    """`track` inside the block reports to this display."""
    token = _report.set(partial(progress.evaluate, run))
    try:
        yield
    finally:
        _report.reset(token)
        progress.end_evaluation(run)


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
        self._since: dict[str, float] = {}  # of the running evaluations

    def begin(self, run: str, step: int, steps: int) -> None:
        self.message(f"{run}: from step {step} to {steps}")

    def report(self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]) -> None:
        self.message(f"{run}: {step}/{steps}  {format_numbers(numbers)}")

    def evaluate(self, run: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._since.setdefault(run, now) >= SECONDS:
            self._since[run] = now
            self.message(f"{run}: evaluating, {done}" + (f"/{total}" if total else " done"))

    def end_evaluation(self, run: str) -> None:
        self._since.pop(run, None)

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
    """Shows a bar per run with speed, remaining time and the latest numbers, and a second bar
    while the run is evaluated."""

    def __init__(self) -> None:
        from rich import progress

        self._bars: Any = progress.Progress(
            *columns(), progress.TextColumn("{task.fields[numbers]}"), refresh_per_second=4
        )
        self._bars.start()
        self._ids: dict[str, Any] = {}
        self._evaluations: dict[str, Any] = {}

    def begin(self, run: str, step: int, steps: int) -> None:
        self._ids[run] = self._bars.add_task(run, total=steps, completed=step, numbers="")

    def advance(self, run: str, step: int) -> None:
        self._bars.update(self._ids[run], completed=step)

    def report(self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]) -> None:
        self._bars.update(self._ids[run], completed=step, numbers=format_numbers(numbers))

    def evaluate(self, run: str, done: int, total: int | None) -> None:
        if run not in self._evaluations:
            name = f"{run}: evaluating"
            self._evaluations[run] = self._bars.add_task(name, total=total, numbers="")
        self._bars.update(self._evaluations[run], completed=done, total=total)

    def end_evaluation(self, run: str) -> None:
        if run in self._evaluations:
            self._bars.remove_task(self._evaluations.pop(run))

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


class Sink:
    """Receives what a run reports. This base class ignores it."""

    def open(self, step: int) -> None:
        """The run starts or resumes at this step."""

    def write(self, entry: Entry) -> None:
        """An entry of the log."""

    def steps(self, columns: Mapping[str, Tensor]) -> None:
        """The numbers of each step since the last call `[n]`, by name."""

    def sync(self) -> None:
        """Wait until everything is on the disk."""

    def close(self) -> None:
        """The run reports nothing more."""


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


class LogFile(Sink):
    """Appends a JSON object per entry to `log.jsonl`. Opening it at a step drops the entries of
    later steps, which are repeated. `warn` is called about damaged lines."""

    def __init__(self, file: Path, warn: Callable[[str], None]) -> None:
        self.file, self._warn = file, warn
        self._stream: Any = None

    def open(self, step: int) -> None:
        if self.file.exists():
            kept = [entry for entry in read_log(self.file, self._warn) if entry["step"] <= step]
            write_atomically(self.file, b"".join(map(_line, kept)))
        with naming(self.file):
            self._stream = self.file.open("ab", buffering=0)

    def write(self, entry: Entry) -> None:
        """Append an entry, unbuffered: it survives if the process is killed."""
        if self._stream is None:
            return
        content = _line(entry)
        with naming(self.file):
            while content:
                content = content[self._stream.write(content) :]

    def sync(self) -> None:
        if self._stream is not None:
            with naming(self.file):
                os.fsync(self._stream.fileno())

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _line(entry: Entry) -> bytes:
    return (json.dumps(jsonable(entry), allow_nan=False) + "\n").encode()


def flat(entry: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of an entry, with the names of the parts they are in.

    Example:
        >>> flat({"loss": 0.5, "metrics": {"error": 1.0}, "event": "evaluation"})
        {'loss': 0.5, 'metrics/error': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = value
    return found


class TensorBoard(Sink):
    """Writes the numbers of training and of evaluations for TensorBoard. Opening it at a step hides
    the numbers of later steps.

    Without the package it writes nothing, and warns once. It gives up if the disk is full: the log
    is what counts.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self.folder, self._warn = folder, warn
        self._writer: Any = None

    def open(self, step: int) -> None:
        if find_spec("tensorboard") is None:
            self._warn("TensorBoard is not installed; log.jsonl has the same numbers")
            return
        from torch.utils.tensorboard import SummaryWriter

        with self._giving_up():
            self._writer = SummaryWriter(str(self.folder), purge_step=step + 1 if step else None)

    def write(self, entry: Entry) -> None:
        prefix = entry.get("event", "train")
        if self._writer is None or prefix not in ("train", "evaluation"):
            return
        with self._giving_up():
            for name, value in flat(entry).items():
                if name != "step":
                    self._writer.add_scalar(f"{prefix}/{name}", value, entry["step"])

    def close(self) -> None:
        with self._giving_up():
            if self._writer is not None:
                self._writer.close()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            self._warn(f"TensorBoard files are no longer written: {error}")
