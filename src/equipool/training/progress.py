"""What a run reports, and where: its log, and the display for the user."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from equipool.files import jsonable, naming, write_text

WIDTH = 20  # of the bar


def format_numbers(numbers: Mapping[str, float | None]) -> str:
    """Numbers on one line.

    Example:
        >>> format_numbers({"loss": 0.00012345, "steps/s": 412.3, "error": None})
        'loss 0.0001234  steps/s 412.3  error -'
    """
    return "  ".join(f"{k} -" if v is None else f"{k} {v:.4g}" for k, v in numbers.items())


class Progress:
    """Shows a run: in a terminal a bar that moves, elsewhere a line per entry of the log, nothing
    if `quiet`. A subclass may show its messages elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._run, self._steps = quiet, "", 0
        self._first, self._began = 0, 0.0
        self._bar = ""  # on the terminal's last line

    def begin(self, run: str, step: int, steps: int) -> None:
        """A run of this name starts or resumes at `step` of `steps`."""
        self._run, self._steps = run, steps
        self._first, self._began = step, time.monotonic()
        self.message(f"{run}: from step {step} to {steps}")

    def report(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """The latest numbers of the run."""
        filled = round(WIDTH * step / self._steps)
        bar = "#" * filled + "-" * (WIDTH - filled)
        seconds = (time.monotonic() - self._began) / max(step - self._first, 1)
        left = timedelta(seconds=round(seconds * (self._steps - step)))
        text = f"{self._run}: {bar} {step}/{self._steps}, {left} left  {format_numbers(numbers)}"
        if self._quiet or not sys.stdout.isatty():
            self.message(text)
        else:
            self._bar = text[: shutil.get_terminal_size().columns - 1]
            print(f"\r\033[K{self._bar}", end="\n" if step == self._steps else "", flush=True)

    def message(self, text: str) -> None:
        """A message to the user."""
        if not self._quiet:
            print(f"\n{text}" if self._bar else text, flush=True)
            self._bar = ""


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


class LogFile:
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
        """Append an entry."""
        content = _line(entry).encode()
        with naming(self.file):
            while content:
                content = content[self._stream.write(content) :]

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        with naming(self.file):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


def _line(entry: Entry) -> str:
    return json.dumps(jsonable(entry), allow_nan=False) + "\n"
