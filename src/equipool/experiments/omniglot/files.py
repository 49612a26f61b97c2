"""Reading Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipool.experiments.data import Source, data_folder, fetch
from equipool.extras import check_extras

ARCHIVE = "omniglot.npz"
ARRAYS = ("images", "alphabet", "character", "split")
PARTS = ("background", "evaluation")

# From the repository of Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through
# probabilistic program induction" (Science 2015).
PUBLISHED = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
BACKGROUND = Source(
    "images_background.zip", f"{PUBLISHED}/images_background.zip",
    "md5:68d2efa1b9178cc56df9314c21c6e718",
    "The first of Omniglot's two files, the training characters,",
)  # fmt: skip
EVALUATION = Source(
    "images_evaluation.zip", f"{PUBLISHED}/images_evaluation.zip",
    "md5:6b91aef0f799c5bb55b94e3f2daec811",
    "The second of Omniglot's two files, the test characters,",
)  # fmt: skip

# alphabet/character/drawing.png, below any folders
PICTURE = re.compile(r"(?:.*/)?([^/]+/[^/]+)/([^/.][^/]*)\.png")

# zipfile, numpy and Pillow report damaged files in many ways.
DAMAGED = (
    OSError, ValueError, KeyError, EOFError, SyntaxError, NotImplementedError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

# The drawings of each character, `[num_drawings, size, size]`, uint8, 1 for ink and 0 for paper, by
# its name, "Alphabet/character01"; sorted by name.
Characters = dict[str, Tensor]


class Omniglot(NamedTuple):
    """The two parts of the data set, which share no alphabet: for training and for testing."""

    background: Characters
    evaluation: Characters


def load_omniglot(folder: str | Path | None = None) -> Omniglot:
    """Load the data set from a folder, by default `data_folder()`: from `omniglot.npz` if it
    exists, else from the official `images_background` and `images_evaluation`, unpacked or as
    `.zip`. Missing files are downloaded.

    Both forms give the same data, except for the order of a character's drawings.
    """
    place = data_folder(folder)
    if place.is_file():
        raise NotADirectoryError(f"{place} is a file, expected a directory with the data")
    archive = place / ARCHIVE
    if archive.exists():
        return read_archive(archive)
    parts = []
    for source in (BACKGROUND, EVALUATION):
        unpacked = place / Path(source.name).stem
        parts.append(read_pictures(unpacked if unpacked.is_dir() else fetch(source, place)))
    background, evaluation = parts
    if shared := background.keys() & evaluation.keys():
        raise ValueError(f"{min(shared)} is in both parts, expected each character in one")
    _check_alike(background | evaluation)
    return Omniglot(background, evaluation)


def read_archive(file: Path) -> Omniglot:
    """Read a numpy archive with `images` uint8 `[characters, drawings, size, size]`, 1 for ink,
    and for each character the strings `alphabet`, `character` and `split`, which is `background`
    or `evaluation`. The characters may be in any order. Nothing is unpickled."""
    try:
        images, alphabet, character, split = _read_arrays(file)
        names = np.char.add(np.char.add(alphabet, "/"), character)
        if len(np.unique(names)) < len(names):
            raise ValueError("it has a character twice")
        parts: dict[str, Characters] = {part: {} for part in PARTS}
        for at in names.argsort():
            parts[split[at]][str(names[at])] = torch.from_numpy(images[at])
        return Omniglot(**parts)
    except DAMAGED as error:
        raise ValueError(
            f"{file} is not an Omniglot archive: {error}. If the file is truncated, copy it again; "
            "if it is something else, move it away"
        ) from error


def _read_arrays(file: Path) -> list[Any]:
    """The arrays of an archive, in the order of `ARRAYS`."""
    with file.open("rb") as stream:  # numpy leaves damaged files open
        content = np.load(stream, allow_pickle=False)
        if not hasattr(content, "files"):
            raise ValueError("it holds a single array")
        if missing := [name for name in ARRAYS if name not in content.files]:
            raise ValueError(f"it has no {missing[0]}, but {', '.join(content.files)}")
        arrays = [content[name] for name in ARRAYS]
    images, *strings = arrays
    square = images.ndim == 4 and images.shape[2] == images.shape[3]
    if images.dtype != np.uint8 or not square or not images.size:
        expected = "uint8 of [characters, drawings, size, size], one or more of each"
        raise ValueError(f"images is {images.dtype} of shape {images.shape}, expected {expected}")
    if images.max() > 1:
        raise ValueError(f"images has the value {images.max()}, expected 1 for ink, 0 for paper")
    for name, values in zip(ARRAYS[1:], strings, strict=True):
        if values.shape != images.shape[:1] or values.dtype.kind != "U":
            found = f"{name} is {values.dtype} of shape {values.shape}"
            raise ValueError(f"{found}, expected {len(images)} strings, one for each character")
    parts = tuple(np.unique(strings[-1]).tolist())
    if parts != PARTS:
        raise ValueError(f"split has {', '.join(parts)}, expected {' and '.join(PARTS)}")
    return arrays


def read_pictures(path: Path) -> Characters:
    """Read one part of the data set as published, from the zip file or the unpacked folder.
    Drawings are black on white PNGs, `Alphabet/character01/0709_01.png`, sorted by name."""
    check_extras(f"reading the pictures in {path}", {"data": ["PIL"]})
    drawings: dict[str, dict[str, Tensor]] = {}
    try:
        for name, content in _files(path):
            found = PICTURE.fullmatch(name)
            if found and not name.startswith("__MACOSX/"):
                drawings.setdefault(found[1], {})[found[2]] = _ink(name, content)
        if not drawings:
            raise ValueError("it has no pictures Alphabet/character/drawing.png")
        _check_alike({f"{name}/{one}": own[one] for name, own in drawings.items() for one in own})
        characters = {
            name: torch.stack([own[one] for one in sorted(own)])
            for name, own in sorted(drawings.items())
        }
        _check_alike(characters)
        return characters
    except DAMAGED as error:
        raise ValueError(f"{path} is not a part of Omniglot: {error}") from error


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file."""
    if path.is_dir():
        for file in sorted(path.rglob("*.png")):
            yield file.relative_to(path).as_posix(), file.read_bytes()
    else:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)


def _ink(name: str, content: bytes) -> Tensor:
    """1 where the picture is dark, else 0: `[height, width]`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            gray = np.asarray(picture.convert("L"))
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged: {error}") from error
    return torch.from_numpy((gray < 128).astype(np.uint8))


def _check_alike(images: dict[str, Tensor]) -> None:
    """All have the same shape: one picture each, or all drawings of a character."""
    first, *_ = images
    for name, own in images.items():
        if own.shape != images[first].shape:
            shapes = f"{tuple(own.shape)} and {first} {tuple(images[first].shape)}"
            raise ValueError(f"{name} has the shape {shapes}, expected the same")
