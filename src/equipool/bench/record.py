"""A run as a JSON file: what was measured, with what, and where."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from equipool.bench.cases import Case
from equipool.bench.outcome import Agreement, Floor, Row, Timing
from equipool.bench.roofline import Rates

FORMAT = 1
PACKAGES = ("torch", "torch_geometric", "triton", "numpy")


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


def read_record(file: Path) -> Record:
    """Read what `Record.write` wrote."""
    content: dict[str, Any] = json.loads(file.read_text())
    if content.get("format") != FORMAT:
        raise ValueError(f"{file} has format {content.get('format')}, expected {FORMAT}")
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


def versions() -> dict[str, str]:
    """Of Python, this package and what it computes with."""
    import equipool

    found = {"python": platform.python_version(), "equipool": equipool.__version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def hardware(device: torch.device) -> dict[str, str | int]:
    """What was measured on."""
    found: dict[str, str | int] = {
        "device": device.type,
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "gpu_memory_bytes": properties.total_memory}
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


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
