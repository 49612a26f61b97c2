"""Progress of training and evaluation, shown to the user."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from equipool.bars import columns

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
_report: ContextVar[Callable[[int, int | None], None] | None] = ContextVar("report", default=None)


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
    report = _report.get()
    if report is None:
        yield from parts
        return
    if total is None:
        total = len(parts) if isinstance(parts, Sized) else None
    done = 0
    for part in parts:
        report(done, total)
        yield part
        done += 1
    report(done, total)


@contextmanager
def tracking(progress: Progress | None, run: str) -> Iterator[None]:
    """`track` inside the block reports to this display; to none if it is None."""
    report = None if progress is None else partial(progress.evaluate, run)
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)
        if progress is not None:
            progress.end_evaluation(run)


def format_numbers(numbers: Mapping[str, float | None]) -> str:
    """Numbers on one line.

    Example:
        >>> format_numbers({"loss": 0.00012345, "steps/s": 412.3})
        'loss 0.0001234  steps/s 412.3'
    """
    return "  ".join(
        f"{name} {'-' if value is None else format(value, '.4g')}"
        for name, value in numbers.items()
    )


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


class LiveProgress(Progress):
    """Shows a bar per run with speed, remaining time and the latest numbers, and a second bar
    while the run is evaluated."""

    def __init__(self) -> None:
        from rich import progress

        self._bars: Any = progress.Progress(
            *columns(),
            progress.TextColumn("{task.fields[numbers]}"),
            refresh_per_second=4,
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
