"""Where caches lie."""

from __future__ import annotations

import os
from contextvars import Context
from pathlib import Path

from equipool.experiments.data_folder import cache_folder, data_folder

ROOM = "molecules"  # the folder of caches in a data folder


def cache_places(folder: Path) -> list[Path]:
    """Folders in which caches are looked for, in this order: that of the data folder, and those
    that serve where it cannot be written: of EQUIPOOL_DATA, and of the user's cache folder."""
    unchosen = Context().run(data_folder)  # as if no folder had been chosen for a command
    return [place / ROOM for place in dict.fromkeys([folder, unchosen, cache_folder()])]


def writable(places: list[Path]) -> Path:
    """The first of the folders that can be written to. It is made."""
    for place in places:
        if _can_be_written(place):
            place.mkdir(parents=True, exist_ok=True)
            return place
    raise PermissionError(
        "no folder for prepared molecules can be written to, tried: "
        + ", ".join(str(place) for place in places)
        + ". Say where there is one with EQUIPOOL_DATA"
    )


def _can_be_written(place: Path) -> bool:
    existing = place
    while not existing.exists():
        existing = existing.parent
    # An administrator may write anywhere, but should not where nobody is meant to.
    return bool(existing.stat().st_mode & 0o222) and os.access(existing, os.W_OK)
