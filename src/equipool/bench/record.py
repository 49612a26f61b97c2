"""A run as a JSON file: what was measured, with what, and where."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equipool.bench.cases import Case
from equipool.bench.outcome import Agreement, Floor, Row, Timing
from equipool.bench.roofline import Rates

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """A run."""

    preset: str
    axis: str
    command: str
    date: str
    commit: str
    versions: dict[str, str]
    hardware: dict[str, str | int]
    rates: list[Rates]
    rows: list[Row]
    format: int = FORMAT

    def write(self, file: Path) -> None:
        """As JSON that is pleasant to compare line by line."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")


class OtherRecordError(ValueError):
    """The record of another command, such as `equipool bench gradients`."""


def read_record(file: Path) -> Record:
    """Read what `Record.write` wrote."""
    content: dict[str, Any] = json.loads(file.read_text())
    if content.get("format") != FORMAT:
        raise ValueError(f"{file} has format {content.get('format')}, expected {FORMAT}")
    if "rates" not in content:
        by = content.get("command", "another command")
        raise OtherRecordError(f"{file} is the record of `{by}`, which has no timings of paths")
    content["rates"] = [Rates(**rates) for rates in content["rates"]]
    content["rows"] = [_row(row) for row in content["rows"]]
    return Record(**content)


def _row(content: dict[str, Any]) -> Row:
    case = content["case"] | {"hidden": tuple(content["case"]["hidden"])}
    parts = {"timing": Timing, "agreement": Agreement, "floor": Floor}
    made = {
        name: None if content[name] is None else part(**content[name])
        for name, part in parts.items()
    }
    return Row(**(content | made | {"case": Case(**case)}))


def git_commit() -> str:
    """The commit of the code that runs, with a plus where it was changed since."""
    folder = Path(__file__).parent
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    return commit + "+" * bool(_git(folder, "status", "--porcelain", "--", "."))


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
