"""Omniglot, from whatever form of it is there."""

from __future__ import annotations

from pathlib import Path

from equipool.experiments.data_folder import data_folder
from equipool.experiments.download import Source, fetch
from equipool.experiments.omniglot.images.archive import read_archive
from equipool.experiments.omniglot.images.characters import Characters, Omniglot
from equipool.experiments.omniglot.images.pictures import read_pictures

ARCHIVE = "omniglot.npz"

# From the repository of Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through
# probabilistic program induction" (Science 2015).
PUBLISHED = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
BACKGROUND = Source(
    "images_background.zip",
    f"{PUBLISHED}/images_background.zip",
    "md5:68d2efa1b9178cc56df9314c21c6e718",
    "The first of Omniglot's two files, the characters to learn from,",
)
EVALUATION = Source(
    "images_evaluation.zip",
    f"{PUBLISHED}/images_evaluation.zip",
    "md5:6b91aef0f799c5bb55b94e3f2daec811",
    "The second of Omniglot's two files, the characters to be tested on,",
)


def load_omniglot(folder: str | Path | None = None) -> Omniglot:
    """Load the data set from a folder: from `omniglot.npz` where that is there, else from the
    official `images_background` and `images_evaluation`, each unpacked or as `.zip`, which are
    downloaded where they are missing.

    Characters are in the order of their names, so both forms give the same but for the order of a
    character's drawings.

    Args:
        folder: where to look; None for `data_folder()`.
    """
    place = data_folder(folder)
    if place.is_file():
        raise NotADirectoryError(f"{place} is a file, expected the folder that the data is in")
    archive = place / ARCHIVE
    if archive.exists():
        return read_archive(archive)
    return Omniglot(_part(BACKGROUND, place), _part(EVALUATION, place))


def _part(source: Source, folder: Path) -> Characters:
    unpacked = folder / Path(source.name).stem
    return read_pictures(unpacked if unpacked.is_dir() else fetch(source, folder))
