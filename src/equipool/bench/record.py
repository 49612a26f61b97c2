"""A benchmark as a JSON file: what was measured, with what, and where."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from equipool.bench.cases import Case, Mode, Precision

FORMAT = 1

Status = Literal["timed", "unavailable", "disagrees", "out of memory", "failed"]

# Names of paths in older records, by the kind of device.
RENAMED = {
    "faithful": "equipool-autograd", "compiled": "equipool-compiled",
    "captured": "equipool-captured",
}  # fmt: skip
OLD_NAMES = {
    "cpu": RENAMED | {"torch": "equipool", "triton": "equipool-torch"},
    "cuda": RENAMED | {"torch": "equipool-torch", "triton": "equipool"},
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one step."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    slowest: float
    repeats: int


@dataclass(frozen=True)
class Agreement:
    """Relative errors against the float64 reference, in the Frobenius norm."""

    output: float
    x_gradient: float
    parameter_gradient: float  # of all parameters together
    worst_parameter: str
    worst_parameter_error: float
    sets: int
    elements: int


@dataclass(frozen=True)
class Floor:
    """The shortest possible time of the operation, at the rates measured in the same run."""

    multiply_adds: float
    bytes: float
    arithmetic_ms: float
    traffic_ms: float

    @property
    def least_ms(self) -> float:
        return max(self.arithmetic_ms, self.traffic_ms)


@dataclass(frozen=True)
class Rates:
    """What the machine reaches in this run."""

    precision: Precision
    square_tflops: float  # of a large square product
    # Of the first hidden layer's product, `[N, 600] @ [600, 332]`, at many elements
    shaped_tflops: float
    copy_gb_per_s: float  # bytes read and written by a large copy


@dataclass(frozen=True)
class Row:
    """One line of a record: a timing, or the reason why there is none."""

    case: Case
    path: str
    precision: Precision
    mode: Mode
    status: Status
    reason: str = ""
    timing: Timing | None = None
    # Peak memory of tensors (inputs, parameters, their gradients and the rest) and CUDA graphs
    peak_bytes: int | None = None
    agreement: Agreement | None = None
    floor: Floor | None = None
    batches: int = 1  # how many batches of different sizes took turns


@dataclass(frozen=True)
class Record:
    """A run of `equipool bench`."""

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
        """Write it as JSON that can be compared line by line."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")


class OtherRecordError(ValueError):
    """The record of another script, such as benchmarks/gradients.py."""


def read_record(file: Path) -> Record:
    """Read what `Record.write` wrote. Paths of older records get their current names."""
    content = read_content(file)
    if "rates" not in content:
        by = content.get("command", "another command")
        raise OtherRecordError(f"{file} is a record of `{by}`, which does not time paths")
    names = OLD_NAMES[content["hardware"]["device"]]
    content["rates"] = [Rates(**rates) for rates in content["rates"]]
    content["rows"] = [_row(row, names) for row in content["rows"]]
    return Record(**content)


def read_content(file: Path) -> dict[str, Any]:
    """A record of this format, as it is in the file."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(f"{file} has format {content.get('format')}, expected {FORMAT}")
    return content


def _row(content: dict[str, Any], names: dict[str, str]) -> Row:
    case = content["case"] | {"hidden": tuple(content["case"]["hidden"])}
    parts: dict[str, type] = {"timing": Timing, "agreement": Agreement, "floor": Floor}
    made = {name: content[name] and part(**content[name]) for name, part in parts.items()}
    path = names.get(content["path"], content["path"])
    return Row(**(content | made | {"case": Case(**case), "path": path}))


def git_commit() -> str:
    """The commit of the running code, with a plus if it was modified since."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+",
                "--exclude=*", "--abbrev=12"]  # fmt: skip
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
