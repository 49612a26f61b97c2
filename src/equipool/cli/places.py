"""Where runs are computed and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from equipool.training.devices import resolve_device

# Options that several commands have.
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... or auto")]
Together = Annotated[int, typer.Option(help="runs trained at the same time", min=1)]
MaxSeconds = Annotated[
    float | None,
    typer.Option(help="stop after so many seconds, and save; the same command goes on"),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="where data lies; by default EQUIPOOL_DATA says, else the cache folder"),
]


def device_from_name(name: str) -> str | None:
    """What the engine calls it; refuses what is no device, or is not there."""
    if name == "auto":
        return None
    try:
        torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device is {name!r}, expected cpu, cuda, cuda:1, ... or auto") from None
    resolve_device(name)
    return name


def default_folder(task: str, preset: str | None) -> Path:
    """Where runs are kept if nobody says where."""
    return Path("runs") / (task if preset is None else f"{task}-{preset}")


def check_seconds(limit: float | None) -> None:
    """Refuse a limit of time that is none."""
    if limit is not None and not limit > 0:
        raise ValueError(f"--max-seconds is {limit:g}, expected more than 0")
