"""Records of measurements: JSON lines, a header about the run and a line for each row."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from equipool.environment import hardware, now, versions

MOST_REPEATS = 200


def arguments(about: str | None, **options: Any) -> argparse.Namespace:
    """The flags of a script: `--device`, `--out`, and these with their defaults. A tuple is the
    choice of several names."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="file of JSON lines to write")
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, nargs="+", choices=default, default=list(default))
        else:
            kind = str if default is None else type(default)
            parser.add_argument(flag, type=kind, default=default)
    chosen = parser.parse_args()
    chosen.device = torch.device(chosen.device)
    return chosen


def header(device: torch.device) -> dict[str, Any]:
    """What every record begins with. The command is without folders."""
    words = [word if word.startswith("-") else Path(word).name for word in sys.argv[1:]]
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "date": now(),
        "commit": git_commit(),
        "versions": versions(),
        "hardware": hardware(device),
    }


def git_commit() -> str:
    """The commit of the running code, with a plus if it was modified since."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+",
                "--exclude=*", "--abbrev=12"]  # fmt: skip
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write(
    file: Path | None, head: Mapping[str, Any], rows: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Write a record; nothing without a file."""
    if file is not None:
        lines = (json.dumps(shortened(line), separators=(",", ":")) for line in (head, *rows))
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def shortened(value: Any) -> Any:
    """Floats with six digits; None for those that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(name): shortened(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    return value


def summarize(times: list[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    lower, _, upper = quantiles(times * 2, n=4, method="inclusive")
    return {"median": median(times), "lower_quartile": lower, "upper_quartile": upper,
            "fastest": min(times), "slowest": max(times), "repeats": len(times)}  # fmt: skip


def milliseconds(
    step: Callable[[], object], device: torch.device, seconds: float = 1.0, least: int = 5
) -> dict[str, float]:
    """Time a step for about so many seconds after a call that warms it up. On a GPU between events
    on the device, without waiting in between, as in a training loop."""
    step()
    once = max(_times(step, device, 1)[0], 1e-3)
    return summarize(
        _times(step, device, max(least, min(int(1000 * seconds / once), MOST_REPEATS)))
    )


def _times(step: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(repeats):
            step()
            marks.append(time.perf_counter())
        return [1000 * (after - before) for before, after in pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(events)]
