"""Where a run reports to: its log, TensorBoard, and the progress display."""

from __future__ import annotations

import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from equipool.training.files import jsonable, naming, write_atomically
from equipool.training.progress import Progress

# An entry of the log. Without an `event` it summarises training since the entry before it.
Entry = dict[str, Any]


class Sink(ABC):
    """Receives what a run reports. Everything but `write` is optional."""

    def open(self, step: int) -> None:  # noqa: B027
        """The run starts or resumes at this step."""

    @abstractmethod
    def write(self, entry: Entry) -> None:
        """An entry of the log."""

    def steps(self, columns: Mapping[str, Tensor]) -> None:  # noqa: B027
        """The numbers of each step since the last call `[n]`, by name."""

    def advance(self, step: int) -> None:  # noqa: B027
        """The run has reached this step. Called often."""

    def message(self, text: str) -> None:  # noqa: B027
        """A message to the user. May come before `open`."""

    def sync(self) -> None:  # noqa: B027
        """Wait until everything is on the disk."""

    def close(self) -> None:  # noqa: B027
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
    """Appends a JSON object per entry to `log.jsonl`.

    Args:
        file: the log. Opening it at a step drops the entries of later steps, which are repeated.
        warn: is called about damaged lines.
    """

    def __init__(self, file: Path, warn: Callable[[str], None]) -> None:
        self.file, self._warn = file, warn
        self._stream: Any = None

    def open(self, step: int) -> None:
        if self.file.exists():
            kept = [entry for entry in read_log(self.file, self._warn) if entry["step"] <= step]
            write_atomically(self.file, "".join(_line(entry) for entry in kept).encode())
        with naming(self.file):
            self._stream = self.file.open("ab", buffering=0)

    def write(self, entry: Entry) -> None:
        """Append an entry, unbuffered: it survives if the process is killed."""
        if self._stream is None:
            return
        with naming(self.file):
            content = _line(entry).encode()
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


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(jsonable(dict(entry)), allow_nan=False) + "\n"


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
    """Writes the numbers of training and of evaluations for TensorBoard.

    Without the package it writes nothing, with one message. It gives up if the disk is full: the
    log is what counts.

    Args:
        folder: where to write. Opening it at a step hides the numbers of later steps.
        warn: is called if nothing can be written.
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
        prefix = {None: "train", "evaluation": "evaluation"}.get(entry.get("event"))
        if prefix is None:
            return
        with self._giving_up():
            for name, value in flat(entry).items():
                if self._writer is not None and name != "step":
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


class Display(Sink):
    """Shows a run in a progress display, which several runs may share.

    Args:
        progress: the display.
        name: of the run.
        steps: of the run.
        monitor: the metric to show of an evaluation.
    """

    def __init__(self, progress: Progress, name: str, steps: int, monitor: str) -> None:
        self.progress, self.name, self.num_steps = progress, name, steps
        self.monitor = monitor

    def open(self, step: int) -> None:
        self.progress.begin(self.name, step, self.num_steps)

    def write(self, entry: Entry) -> None:
        numbers: dict[str, float | None] = {}
        if "event" not in entry:
            numbers = {"loss": entry["loss"], **entry["metrics"]}
            numbers["steps/s"] = entry["steps_per_second"]
        elif entry["event"] == "evaluation":
            numbers = {f"evaluated {self.monitor}": entry["metrics"][self.monitor]}
        if numbers:
            self.progress.report(self.name, entry["step"], self.num_steps, numbers)

    def advance(self, step: int) -> None:
        self.progress.advance(self.name, step)

    def message(self, text: str) -> None:
        self.progress.message(f"{self.name}: {text}")
