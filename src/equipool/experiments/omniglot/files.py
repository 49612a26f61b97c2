"""Reading Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipool.experiments.data import Source, data_folder, fetch
from equipool.extras import check_extras

ARCHIVE = "omniglot.npz"

# From the repository of Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through
# probabilistic program induction" (Science 2015).
PUBLISHED = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
SOURCES = (
    Source(
        "images_background.zip", f"{PUBLISHED}/images_background.zip",
        "md5:68d2efa1b9178cc56df9314c21c6e718",
        "The first of Omniglot's two files, the training characters,",
    ),
    Source(
        "images_evaluation.zip", f"{PUBLISHED}/images_evaluation.zip",
        "md5:6b91aef0f799c5bb55b94e3f2daec811",
        "The second of Omniglot's two files, the test characters,",
    ),
)  # fmt: skip

# part/alphabet/character/drawing.png
PICTURE = re.compile(r"images_[a-z]+/([^/]+/[^/]+)/[^/.][^/]*\.png")

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
    exists, else from the official `images_background.zip` and `images_evaluation.zip`, which are
    downloaded if they are missing.

    Both forms give the same data, except for the order of a character's drawings.
    """
    place = data_folder(folder)
    archive = place / ARCHIVE
    if archive.exists():
        return read_archive(archive)
    return Omniglot(*(read_pictures(fetch(source, place)) for source in SOURCES))


def read_archive(file: Path) -> Omniglot:
    """Read a numpy archive with `images` uint8 `[characters, drawings, size, size]`, 1 for ink,
    and for each character the strings `alphabet`, `character` and `split`, which is `background`
    or `evaluation`. The characters may be in any order. Nothing is unpickled."""
    parts: dict[str, Characters] = {"background": {}, "evaluation": {}}
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            images = content["images"]
            names = np.char.add(np.char.add(content["alphabet"], "/"), content["character"])
            split = content["split"]
        if images.dtype != np.uint8 or images.ndim != 4 or images.max() > 1:
            found = f"images is {images.dtype} of shape {images.shape}"
            raise ValueError(
                f"{found}, expected uint8 [characters, drawings, size, size], 1 for ink"
            )
        if not len(np.unique(names)) == len(split) == len(images):
            raise ValueError("it has not one name and one split for each character")
        for at in names.argsort():
            parts[split[at]][str(names[at])] = torch.from_numpy(images[at])
    except (*DAMAGED, TypeError) as error:
        raise ValueError(
            f"{file} is not an Omniglot archive: {error!r}. If the file is truncated, copy it "
            "again; if it is something else, move it away"
        ) from error
    return Omniglot(**parts)


def read_pictures(file: Path) -> Characters:
    """Read one part of the data set as published, a zip file of black on white PNGs such as
    `images_background/Alphabet/character01/0709_01.png`, sorted by name."""
    check_extras(f"reading the pictures in {file}", {"data": ["PIL"]})
    from PIL import Image

    drawings: dict[str, list[np.ndarray]] = {}
    name = ""
    try:
        with zipfile.ZipFile(file) as archive:
            for name in sorted(archive.namelist()):
                if found := PICTURE.fullmatch(name):
                    with Image.open(io.BytesIO(archive.read(name)), formats=["PNG"]) as picture:
                        ink = np.asarray(picture.convert("L")) < 128
                    drawings.setdefault(found[1], []).append(ink.astype(np.uint8))
        # one shape for all, which stacking checks
        images = torch.from_numpy(np.stack([np.stack(own) for own in drawings.values()]))
    except DAMAGED as error:
        problem = f"{file} is not a part of Omniglot, or is damaged ({name})"
        raise ValueError(f"{problem}: {error}") from error
    return dict(zip(drawings, images, strict=True))
