"""Prepared molecules in one file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipool.experiments.molecules.data import features
from equipool.experiments.molecules.data.checked_file import (
    Stream,
    UnusableFileError,
    check,
    read_about,
    read_tensors,
    write_checked,
)
from equipool.experiments.molecules.data.extras import installed
from equipool.experiments.molecules.data.graphs import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    PARTS,
    MoleculeSet,
    offsets_of,
)
from equipool.experiments.molecules.data.groups import Groups
from equipool.experiments.molecules.data.pieces import Array, Piece
from equipool.experiments.molecules.data.smiles import Problem
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.spool import Spool

FORMAT = 1  # of the file
MISSING = 255  # a label of a classification that is missing
LABEL_TYPES = {"classification": "U8", "regression": "F32"}


@dataclass(frozen=True)
class MoleculeCache:
    """A file of molecules that have been prepared."""

    path: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the molecules are, and what they were made from."""
        return read_about(self.path)

    @property
    def versions(self) -> tuple[int | None, int | None]:
        """Of the file's format and of the features."""
        return self.about.get("format"), self.about.get("features")

    def is_of(self, fingerprint: dict[str, Any]) -> bool:
        """Whether it was made from a source of this fingerprint."""
        return bool(self.about.get("source") == fingerprint)

    def check(self) -> None:
        """Raise `UnusableFileError` where it is not what was written, or by another version."""
        if self.versions != (FORMAT, features.VERSION):
            raise UnusableFileError(
                f"{self.path} is of another version: expected format {FORMAT} and features "
                f"{features.VERSION}, found {self.versions[0]} and {self.versions[1]}"
            )
        check(self.path)

    def molecules(self) -> MoleculeSet:
        """The molecules. Atoms and bonds are in the file's memory."""
        tensors = read_tensors(self.path)
        parts = tensors["parts"]
        return MoleculeSet(
            atoms=tensors["atoms"],
            bonds=tensors["bonds"],
            ends=tensors["ends"],
            atom_start=offsets_of(tensors["num_atoms"]),
            bond_start=offsets_of(tensors["num_bonds"]),
            labels=_decoded(tensors["labels"]),
            label_names=tuple(self.about["label_names"]),
            kind=self.about["kind"],
            split={name: (parts == at).nonzero().squeeze(1) for at, name in enumerate(PARTS)},
            source_rows=tensors["source_rows"],
        )

    def part_sizes(self) -> dict[str, int]:
        """Molecules in each part of the split."""
        parts = read_tensors(self.path)["parts"]
        return {name: int((parts == at).sum()) for at, name in enumerate(PARTS)}

    def made_elsewhere(self) -> str:
        """Versions of packages with which it was made and those that are here, where they differ.

        They are no reason to make it again: what is read of a molecule seldom changes.
        """
        now = installed()
        then = self.about.get("made_with", now)
        return ", ".join(
            f"{package} {then[package]} (here: {now[package]})"
            for package in then
            if package in now and then[package] != now[package]
        )

    def problems(self) -> tuple[Problem, ...]:
        """The molecules that RDKit did not read as they stand."""
        text = read_tensors(self.path)["problems"].numpy().tobytes()
        return tuple(Problem(**found) for found in json.loads(text))


def write_cache(
    path: Path,
    folder: Path,
    source: MoleculeSource,
    contents: Contents,
    pieces: Iterable[Piece],
) -> tuple[Problem, ...]:
    """Write pieces as they come, and give the problems with them.

    Args:
        path: the file to be written.
        folder: where there is room for what is not yet in order.
    """
    fingerprint = source.fingerprint()
    groups = Groups()
    problems: list[Problem] = []
    with Spool(folder) as spool:
        for piece in pieces:
            _add(spool, piece, contents.kind)
            groups.extend(piece.groups)
            problems += piece.problems
        spool.add("parts", _parts(source, groups, problems))
        spool.add("problems", np.frombuffer(_problems_text(problems), np.uint8))
        about = {
            "format": FORMAT,
            "features": features.VERSION,
            "source": fingerprint,
            "label_names": contents.label_names,
            "kind": contents.kind,
            "made_with": installed(),
        }
        write_checked(path, about, _streams(spool, len(groups), contents))
    return tuple(problems)


def write_problems(path: Path, problems: tuple[Problem, ...]) -> None:
    """The same list for people, as a table; no file where there are none."""
    path.unlink(missing_ok=True)
    if not problems:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["row", "smiles", "reason", "kept"])
        writer.writeheader()
        writer.writerows(asdict(problem) for problem in problems)


def _parts(source: MoleculeSource, groups: Groups, problems: list[Problem]) -> Array:
    if not len(groups):
        reason = f", the first because: {problems[0].reason}" if problems else ""
        raise ValueError(f"{source.location}: no molecule can be read{reason}")
    parts = source.divide(groups)
    if not (parts == PARTS.index("train")).any():
        raise ValueError(
            f"{source.location}: no molecule is left for training; choose another split"
        )
    return parts


def _add(spool: Spool, piece: Piece, kind: str) -> None:
    spool.add("num_atoms", piece.num_atoms)
    spool.add("num_bonds", piece.num_bonds)
    spool.add("atoms", piece.atoms)
    spool.add("bonds", piece.bonds)
    spool.add("sources", piece.ends[0])
    spool.add("targets", piece.ends[1])
    spool.add("labels", _encoded(piece.labels, kind))
    spool.add("source_rows", piece.source_rows)


def _streams(spool: Spool, number: int, contents: Contents) -> dict[str, Stream]:
    atoms = spool.size("atoms") // len(ATOM_CATEGORIES)
    bonds = spool.size("bonds") // len(BOND_CATEGORIES)
    labels = (number, len(contents.label_names))
    return {
        "source_rows": Stream("I64", (number,), spool.blocks("source_rows")),
        "num_atoms": Stream("I32", (number,), spool.blocks("num_atoms")),
        "num_bonds": Stream("I32", (number,), spool.blocks("num_bonds")),
        "ends": Stream("I16", (2, bonds), _chained(spool, "sources", "targets")),
        "atoms": Stream("U8", (atoms, len(ATOM_CATEGORIES)), spool.blocks("atoms")),
        "bonds": Stream("U8", (bonds, len(BOND_CATEGORIES)), spool.blocks("bonds")),
        "labels": Stream(LABEL_TYPES[contents.kind], labels, spool.blocks("labels")),
        "parts": Stream("U8", (number,), spool.blocks("parts")),
        "problems": Stream("U8", (spool.size("problems"),), spool.blocks("problems")),
    }


def _chained(spool: Spool, *names: str) -> Iterable[bytes]:
    for name in names:
        yield from spool.blocks(name)


def _encoded(labels: Array, kind: str) -> Array:
    """Labels of a classification in a byte each."""
    if kind == "regression":
        return labels
    if not (np.isnan(labels) | (labels == 0) | (labels == 1)).all():
        raise ValueError("labels: expected 0, 1 or missing in a classification, found another")
    return np.nan_to_num(labels, nan=MISSING).astype(np.uint8)


def _decoded(labels: Tensor) -> Tensor:
    if labels.dtype == torch.float32:
        return labels
    return labels.float().masked_fill_(labels == MISSING, torch.nan)


def _problems_text(problems: list[Problem]) -> bytes:
    return json.dumps([asdict(problem) for problem in problems]).encode()
