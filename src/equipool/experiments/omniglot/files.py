"""Reading Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    "images_background.zip",
    f"{PUBLISHED}/images_background.zip",
    "md5:68d2efa1b9178cc56df9314c21c6e718",
    "The first of Omniglot's two files, the training characters,",
)
EVALUATION = Source(
    "images_evaluation.zip",
    f"{PUBLISHED}/images_evaluation.zip",
    "md5:6b91aef0f799c5bb55b94e3f2daec811",
    "The second of Omniglot's two files, the test characters,",
)

# alphabet/character/drawing.png, below any folders
PICTURE = re.compile(r"(?:.*/)?([^/]+/[^/]+)/([^/.][^/]*)\.png")

# zipfile, numpy and Pillow report damaged files in many ways.
DAMAGED = (
    OSError, ValueError, KeyError, EOFError, SyntaxError, NotImplementedError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class Characters:
    """Characters, all with the same number of drawings.

    Args:
        names: of the characters, `"Alphabet/character01"`, sorted and unique.
        images: `[num_characters, num_drawings, size, size]`, uint8, 1 for ink and 0 for paper.
    """

    names: tuple[str, ...]
    images: Tensor

    def __len__(self) -> int:
        return len(self.names)

    def take(self, positions: Sequence[int]) -> Characters:
        """The characters at these positions, in ascending order."""
        names = tuple(self.names[position] for position in positions)
        return Characters(names, self.images[list(positions)])


@dataclass(frozen=True)
class Omniglot:
    """The two parts of the data set, which share no alphabet: `background`, for training, and
    `evaluation`, for testing."""

    background: Characters
    evaluation: Characters

    def __post_init__(self) -> None:
        shapes = [tuple(part.images.shape[1:]) for part in (self.background, self.evaluation)]
        if shapes[0] != shapes[1]:
            found = f"background has drawings of shape {shapes[0]} and evaluation of {shapes[1]}"
            raise ValueError(f"{found}, expected the same")
        if shared := set(self.background.names) & set(self.evaluation.names):
            raise ValueError(f"{min(shared)} is in both parts, expected each character in one")


def load_omniglot(folder: str | Path | None = None) -> Omniglot:
    """Load the data set from a folder: from `omniglot.npz` if it exists, else from the official
    `images_background` and `images_evaluation`, unpacked or as `.zip`. Missing files are
    downloaded.

    Characters are sorted by name. Both forms give the same data, except for the order of a
    character's drawings.

    Args:
        folder: where to look; None for `data_folder()`.
    """
    place = data_folder(folder)
    if place.is_file():
        raise NotADirectoryError(f"{place} is a file, expected a directory with the data")
    archive = place / ARCHIVE
    if archive.exists():
        return read_archive(archive)
    return Omniglot(_published_part(BACKGROUND, place), _published_part(EVALUATION, place))


def _published_part(source: Source, folder: Path) -> Characters:
    unpacked = folder / Path(source.name).stem
    return read_pictures(unpacked if unpacked.is_dir() else fetch(source, folder))


def read_archive(file: Path) -> Omniglot:
    """Read a numpy archive with `images` uint8 `[characters, drawings, size, size]`, 1 for ink,
    and for each character the strings `alphabet`, `character` and `split`, which is `background`
    or `evaluation`. The characters may be in any order. Nothing is unpickled."""
    try:
        images, alphabet, character, split = _read_arrays(file)
        names = np.char.add(np.char.add(alphabet, "/"), character)
        if len(np.unique(names)) < len(names):
            raise ValueError("it has a character twice")
        parts = []
        for part in PARTS:
            rows = np.flatnonzero(split == part)
            rows = rows[names[rows].argsort()]
            parts.append(Characters(tuple(names[rows].tolist()), torch.from_numpy(images[rows])))
        return Omniglot(*parts)
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
            expected = f"{len(images)} strings, one for each character"
            raise ValueError(
                f"{name} is {values.dtype} of shape {values.shape}, expected {expected}"
            )
    parts = tuple(np.unique(strings[-1]).tolist())
    if parts != PARTS:
        raise ValueError(f"split has {', '.join(parts)}, expected {' and '.join(PARTS)}")
    return arrays


def read_pictures(path: Path) -> Characters:
    """Read one part of the data set as published, from the zip file or the unpacked folder.
    Drawings are black on white PNGs, `Alphabet/character01/0709_01.png`, sorted by name."""
    check_extras(f"reading the pictures in {path}", {"data": ["PIL"]})
    try:
        return _characters(_files(path))
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
    """1 where the picture is dark, else 0: `[height, width]`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            gray = np.asarray(picture.convert("L"))
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged: {error}") from error
    return torch.from_numpy((gray < 128).astype(np.uint8))


def _check_alike(drawings: dict[str, dict[str, Tensor]]) -> None:
    first, *_ = drawings
    shape = next(iter(drawings[first].values())).shape
    for name, own in drawings.items():
        if len(own) != len(drawings[first]):
            found = f"{name} has {len(own)} drawings and {first} has {len(drawings[first])}"
            raise ValueError(f"{found}, expected the same")
        for drawing, image in own.items():
            if image.shape != shape:
                sizes = f"{tuple(image.shape)}, others {tuple(shape)}"
                raise ValueError(f"{name}/{drawing} has the size {sizes}")
