"""What is left of a run when it is done: a small JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from equipool.training.files import to_json, write_atomically

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """A run.

    `seconds` are of wall-clock, summed over the pieces of a resumed run; `training_seconds` the
    same without the evaluations, of this run and of those trained together with it. `together` is
    the number of runs of this process that shared the device; of other processes it knows nothing.
    `versions`, `hardware` and `together` are those of the last piece, and `ran_on` has those of
    each, with its number of `steps`.
    `metrics` are those of the last evaluation, `best` those of the best with its `step`. Each entry
    of `curve` is an evaluation: `step`, `seconds`, `training_seconds`, `metrics`. `spikes` counts
    steps whose loss exceeded ten times the running median (see `history.Spikes`), `skipped` those
    that the guard kept from being taken. `warning` says what makes the result doubtful.
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
    ran_on: list[dict[str, Any]] = field(default_factory=list)
    warning: str | None = None
    format: int = FORMAT

    def write(self, file: str | Path) -> None:
        """Write it; the file is the old one or this one, at every moment."""
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, to_json(asdict(self)))


def read_record(file: str | Path) -> Record:
    """Read what `Record.write` wrote."""
    try:
        content: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {content.get('format')}, expected {FORMAT}")
        return Record(**content)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not the record of a run: {error}") from error
