"""What is left of a run when it is done: a small JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equipool.training.files import to_json, write_atomically

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """A run.

    `seconds` are of wall-clock, summed over the pieces of a resumed run; `training_seconds` the
    same without the evaluations. `together` is the number of runs that shared the device.
    `metrics` are those of the last evaluation, `best` those of the best with its `step`. Each entry
    of `curve` is an evaluation: `step`, `seconds`, `training_seconds`, `metrics`. `spikes` counts
    steps whose loss exceeded ten times the running median (see `history.Spikes`), `skipped` those
    that the guard kept from being taken.
    """

    task: str
    seed: int
    config: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str | int]
    date: str
    steps: int
    complete: bool
    pieces: int
    together: int
    seconds: float
    training_seconds: float
    num_parameters: int
    metrics: dict[str, float | None]
    best: dict[str, Any] | None
    curve: list[dict[str, Any]]
    spikes: int
    skipped: int
    format: int = FORMAT

    def write(self, file: str | Path) -> None:
        """Write it; the file is the old one or this one, at every moment."""
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, to_json(asdict(self)))


def read_record(file: str | Path) -> Record:
    """Read what `Record.write` wrote."""
    content: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(f"{file} has format {content.get('format')}, expected {FORMAT}")
    return Record(**content)
