"""Omniglot as its makers publish it: a picture for each drawing."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipool.experiments.omniglot.images.characters import Characters
from equipool.experiments.omniglot.images.zips import UNREADABLE
from equipool.extras import check_extras

# alphabet/character/drawing.png, below any folders
PICTURE = re.compile(r"(?:.*/)?([^/]+/[^/]+)/([^/.][^/]*)\.png")
DAMAGED = (*UNREADABLE, SyntaxError)  # which Pillow raises, too


def read_pictures(path: Path) -> Characters:
    """Read a part of the data set, from its zip file or from the folder that this was unpacked to.
    Drawings are black on white PNGs, `Alphabet/character01/0709_01.png`, and are taken in the
    order of their names."""
    check_extras(f"reading the pictures in {path}", {"data": ["PIL"]})
    try:
        return _characters(_files(path))
    except DAMAGED as error:
        raise ValueError(f"{path} is not a part of Omniglot: {error}") from error


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file inside."""
    if path.is_dir():
        for file in sorted(path.rglob("*.png")):
            yield file.relative_to(path).as_posix(), file.read_bytes()
    else:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)


def _characters(files: Iterator[tuple[str, bytes]]) -> Characters:
    drawings: dict[str, dict[str, Tensor]] = {}
    for name, content in files:
        found = PICTURE.fullmatch(name)
        if found and not name.startswith("__MACOSX/"):
            drawings.setdefault(found[1], {})[found[2]] = _ink(name, content)
    if not drawings:
        raise ValueError("it has no pictures Alphabet/character/drawing.png")
    _check_alike(drawings)
    names = sorted(drawings)
    images = [torch.stack([drawings[name][d] for d in sorted(drawings[name])]) for name in names]
    return Characters(tuple(names), torch.stack(images))


def _ink(name: str, content: bytes) -> Tensor:
    """1 where the picture is dark, `[height, width]`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            gray = np.asarray(picture.convert("L"))
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged: {error}") from error
    return torch.from_numpy((gray < 128).astype(np.uint8))


def _check_alike(drawings: dict[str, dict[str, Tensor]]) -> None:
    first = next(iter(drawings))
    number, shape = len(drawings[first]), next(iter(drawings[first].values())).shape
    for name, own in drawings.items():
        if len(own) != number:
            raise ValueError(
                f"{name} has {len(own)} drawings and {first} has {number}, expected the same"
            )
        for drawing, image in own.items():
            if image.shape != shape:
                raise ValueError(
                    f"{name}/{drawing} has the size {tuple(image.shape)}, others {tuple(shape)}"
                )
