"""Omniglot in one file of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipool.experiments.omniglot.images.characters import Characters, Omniglot
from equipool.experiments.omniglot.images.zips import UNREADABLE

ARRAYS = ("images", "alphabet", "character", "split")
PARTS = ("background", "evaluation")


def read_archive(file: Path) -> Omniglot:
    """Read a file of numpy's with `images` uint8 `[characters, drawings, size, size]`, 1 for ink,
    and for each character the texts `alphabet`, `character` and `split`, which is `background` or
    `evaluation`. The characters may be in any order. Nothing is unpickled."""
    try:
        arrays = _read_arrays(file)
        _check(arrays)
        return Omniglot(*(_part(arrays, part) for part in PARTS))
    except (*UNREADABLE, KeyError) as error:
        raise ValueError(
            f"{file} is not an archive of Omniglot: {error}. Where a copy of it was cut off, copy "
            "it again; where it is another file, move it away"
        ) from error


def _read_arrays(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:  # numpy leaves a file open that is damaged
        content = np.load(stream, allow_pickle=False)
        if not hasattr(content, "files"):
            raise ValueError("it holds a single array")
        missing = [name for name in ARRAYS if name not in content.files]
        if missing:
            raise ValueError(f"it has no {missing[0]}, but {', '.join(content.files)}")
        return {name: content[name] for name in ARRAYS}


def _check(arrays: dict[str, Any]) -> None:
    images = arrays["images"]
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(
            f"images is {images.dtype} of shape {images.shape}, expected uint8 of "
            "[characters, drawings, size, size]"
        )
    if 0 in images.shape:
        raise ValueError(f"images has shape {images.shape}, expected one or more of each")
    for name in ARRAYS[1:]:
        if arrays[name].shape != images.shape[:1] or arrays[name].dtype.kind != "U":
            raise ValueError(
                f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}, expected "
                f"{len(images)} texts, one for each character"
            )
    unknown = set(arrays["split"].tolist()) - set(PARTS)
    if unknown:
        raise ValueError(f"split has {min(unknown)!r}, expected {' or '.join(PARTS)}")
    missing = set(PARTS) - set(arrays["split"].tolist())
    if missing:
        raise ValueError(f"it has no characters of the {min(missing)} set")
    if images.max() > 1:
        raise ValueError(f"images has the value {images.max()}, expected 1 for ink, 0 for paper")


def _part(arrays: dict[str, Any], part: str) -> Characters:
    rows = np.flatnonzero(arrays["split"] == part)
    alphabets, characters = arrays["alphabet"][rows], arrays["character"][rows]
    names = [f"{a}/{c}" for a, c in zip(alphabets, characters, strict=True)]
    order = sorted(range(len(rows)), key=lambda position: names[position])
    images = torch.from_numpy(arrays["images"][rows[order]])
    return Characters(tuple(names[position] for position in order), images)
