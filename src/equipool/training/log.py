"""The log of a run: a JSON object a line, and TensorBoard where it is installed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipool.training.files import jsonable, naming, write_atomically

Entry = dict[str, Any]


def read_log(file: Path) -> list[Entry]:
    """All entries of a log, each with its `step`; a line that was cut off while it was written is
    left out."""
    return list(_entries(file)) if file.exists() else []


def _entries(file: Path) -> Iterator[Entry]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            if not isinstance(entry.get("step"), int):
                raise ValueError(f"{file} is not the log of a run: line {number} has no step")
            yield entry


class Log:
    """Appends to `log.jsonl`.

    Args:
        file: the log. Entries of steps after `step` are dropped: those steps are taken again.
        step: the step that the run starts at.
    """

    def __init__(self, file: Path, step: int = 0) -> None:
        self.file = file
        if file.exists():
            kept = [entry for entry in read_log(file) if entry["step"] <= step]
            write_atomically(file, "".join(_line(entry) for entry in kept).encode())
        self._stream = file.open("ab", buffering=0)

    def write(self, entry: Entry) -> None:
        """Append an entry. A process that is killed afterwards does not take it along."""
        with naming(self.file):
            content = _line(entry).encode()
            while content:
                content = content[self._stream.write(content) :]

    def sync(self) -> None:
        """Wait until the disk has it."""
        with naming(self.file):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(jsonable(dict(entry)), allow_nan=False) + "\n"
