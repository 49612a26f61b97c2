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

# zipfile and Pillow report damaged files in many ways.
UNREADABLE = (
    OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
DAMAGED = (*UNREADABLE, SyntaxError)


@dataclass(frozen=True)
class Characters:
    """Characters, all with the same number of drawings.

    Args:
        names: of the characters, `"Alphabet/character01"`, sorted and unique.
        images: `[num_characters, num_drawings, size, size]`, uint8, 1 for ink and 0 for paper.
    """

    names: tuple[str, ...]
    images: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.shape[2] != self.images.shape[3]:
            raise ValueError(
                f"images has shape {tuple(self.images.shape)}, expected "
                "[characters, drawings, size, size]"
            )
        if len(self.names) != len(self.images):
            raise ValueError(f"there are {len(self.names)} names for {len(self.images)} characters")
        if list(self.names) != sorted(set(self.names)):
            raise ValueError("names is not sorted or has duplicates")

    def __len__(self) -> int:
        return len(self.names)

    def take(self, positions: Sequence[int]) -> Characters:
        """The characters at these positions, in ascending order."""
        return Characters(
            tuple(self.names[position] for position in positions), self.images[list(positions)]
        )


@dataclass(frozen=True)
class Omniglot:
    """The two parts of the data set, which share no alphabet: `background`, for training, and
    `evaluation`, for testing."""

    background: Characters
    evaluation: Characters

    def __post_init__(self) -> None:
        if self.background.images.shape[1:] != self.evaluation.images.shape[1:]:
            raise ValueError(
                f"background has drawings of shape {tuple(self.background.images.shape[1:])} and "
                f"evaluation of {tuple(self.evaluation.images.shape[1:])}, expected the same"
            )
        shared = set(self.background.names) & set(self.evaluation.names)
        if shared:
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
        arrays = _read_arrays(file)
        _check_arrays(arrays)
        return Omniglot(*(_archived_part(arrays, part) for part in PARTS))
    except (*UNREADABLE, KeyError) as error:
        raise ValueError(
            f"{file} is not an Omniglot archive: {error}. If the file is truncated, copy it again; "
            "if it is something else, move it away"
        ) from error


def _read_arrays(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:  # numpy leaves damaged files open
        content = np.load(stream, allow_pickle=False)
        if not hasattr(content, "files"):
            raise ValueError("it holds a single array")
        missing = [name for name in ARRAYS if name not in content.files]
        if missing:
            raise ValueError(f"it has no {missing[0]}, but {', '.join(content.files)}")
        return {name: content[name] for name in ARRAYS}


def _check_arrays(arrays: dict[str, Any]) -> None:
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
                f"{len(images)} strings, one for each character"
            )
    unknown = set(arrays["split"].tolist()) - set(PARTS)
    if unknown:
        raise ValueError(f"split has {min(unknown)!r}, expected {' or '.join(PARTS)}")
    missing = set(PARTS) - set(arrays["split"].tolist())
    if missing:
        raise ValueError(f"it has no characters of the {min(missing)} set")
    if images.max() > 1:
        raise ValueError(f"images has the value {images.max()}, expected 1 for ink, 0 for paper")


def _archived_part(arrays: dict[str, Any], part: str) -> Characters:
    rows = np.flatnonzero(arrays["split"] == part)
    alphabets, characters = arrays["alphabet"][rows], arrays["character"][rows]
    names = [f"{a}/{c}" for a, c in zip(alphabets, characters, strict=True)]
    order = sorted(range(len(rows)), key=lambda position: names[position])
    images = torch.from_numpy(arrays["images"][rows[order]])
    return Characters(tuple(names[position] for position in order), images)


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
