"""Data sets, prepared once: one file of featurised molecules, which training reads instead of the
source. It needs neither RDKit nor ogb."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from equipool.experiments.common import cache_folder, data_folder
from equipool.experiments.molecules.datasets import dataset_named
from equipool.experiments.molecules.features import Problem
from equipool.experiments.molecules.molecule_set import PARTS, TENSORS, MoleculeSet
from equipool.experiments.molecules.sources import MoleculeSource
from equipool.files import FileError, load_tensors, save_tensors
from equipool.tables import listed

FOLDER = "molecules"  # of prepared files, in a data folder
FILE_KIND = "equipool molecules 1"
MAX_SHOWN = 10  # rejected molecules in a message


@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set, the molecules that RDKit rejected, and the fingerprint of its source."""

    molecules: MoleculeSet
    problems: tuple[Problem, ...]
    fingerprint: str


def load_molecules(which: str | MoleculeSource) -> Prepared:
    """A data set.

    The first call reads the source on all cores and writes one file; later calls read that file. It
    is made again if the source has changed or the file is damaged.

    The file of a public data set is written to `molecules` in the data folder, and is enough
    without the source; if that folder cannot be written, to `molecules` in the cache folder. The
    file of a table of your own holds a copy of its content, so it always goes to the cache folder,
    with the permissions of the table. The path is printed when the file is written.

    Args:
        which: `"molhiv"`, `"molpcba"`, `"toxcast"`, `"tox21"`, `"qm9"`, or a source such as
            `SmilesTable(path)`.
    """
    source, paths = _locate(which)
    expected = None if source is None else source.fingerprint()
    damaged = ""
    for path in filter(Path.is_file, paths):
        try:
            found = _read(path)
        except FileError as error:
            damaged = f"{error}. "
            continue
        if expected in (None, found.fingerprint):
            return found
    if source is None or expected is None:
        raise FileNotFoundError(damaged + _advice(which))
    prepared = Prepared(*source.read(), expected)
    if not len(prepared.molecules.positions("train")):
        advice = "try --split random or add rows"
        raise ValueError(f"{source.location}: the split left no training molecules; {advice}")
    path = _write(prepared, paths)
    if not isinstance(which, str):
        shutil.copymode(source.files[0], path)
    text = f"{source.location.name}: {describe(prepared)}\nPrepared molecules: {path}"
    print(text, file=sys.stderr)
    return prepared


def describe(prepared: Prepared) -> str:
    """A summary: the labels, the sizes of the parts, and the molecules that RDKit rejected."""
    molecules, problems = prepared.molecules, prepared.problems
    sizes = ", ".join(f"{len(molecules.positions(part)):,} {part}" for part in PARTS)
    text = f"{molecules.kind}, labels {listed(molecules.label_names)}; {sizes}"
    if problems:
        number = sum(problem.kept for problem in problems)
        text += f"\nRDKit rejects {len(problems):,} molecules, of which {number:,} are kept:"
        shown = (f"\n  row {one.row}: {one.smiles!r}: {one.reason}" for one in problems[:MAX_SHOWN])
        text += "".join(shown) + "\n  ..." * (len(problems) > MAX_SHOWN)
    return text


def _locate(which: str | MoleculeSource) -> tuple[MoleculeSource | None, list[Path]]:
    """The source of a data set if it is there, and where its prepared file may be."""
    if isinstance(which, str):
        dataset = dataset_named(which)
        name, source = dataset.name, dataset.find(data_folder())
        folders = [data_folder(), cache_folder()]
    else:
        source, name = None if which.missing() else which, which.location.name.split(".")[0]
        name += "" if source is None else f"-{source.fingerprint()}"
        folders = [cache_folder()]  # others may read the data folder
    return source, [each / FOLDER / f"{name}.safetensors" for each in dict.fromkeys(folders)]


def _advice(which: str | MoleculeSource) -> str:
    """What is missing, and how to get it."""
    if isinstance(which, str):
        return dataset_named(which).describe_missing(data_folder())
    absent = ("is not a file" if file.exists() else "does not exist" for file in which.missing())
    reasons = ", ".join(f"{file} {why}" for file, why in zip(which.missing(), absent, strict=True))
    base = "" if which.location.is_absolute() else f", which is relative to {Path.cwd()}"
    return f"{reasons}. Check the path (--csv){base}"


def _read(path: Path) -> Prepared:
    tensors, about = load_tensors(path, FILE_KIND)
    names, kind = tuple(about["label_names"]), about["kind"]
    problems = tuple(Problem(**problem) for problem in about["problems"])
    molecules = MoleculeSet(**tensors, label_names=names, kind=kind)
    return Prepared(molecules, problems, about["fingerprint"])


def _write(prepared: Prepared, paths: Sequence[Path]) -> Path:
    """Write the file to the first folder that can be written."""
    molecules = prepared.molecules
    about = {
        "label_names": molecules.label_names, "kind": molecules.kind,
        "problems": [asdict(problem) for problem in prepared.problems],
        "fingerprint": prepared.fingerprint,
    }  # fmt: skip
    for path in paths:
        if _is_writable(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            tensors = {name: getattr(molecules, name) for name in TENSORS}
            save_tensors(path, tensors, about, FILE_KIND)
            return path
    tried = ", ".join(str(path.parent) for path in paths)
    raise PermissionError(f"cannot write to {tried}: choose another folder with --data-dir")


def _is_writable(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    # root may write anywhere, but should not write to read-only folders
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
