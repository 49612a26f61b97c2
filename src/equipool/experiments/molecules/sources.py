"""Files that molecules are read from."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch

from equipool.experiments.molecules import splits
from equipool.experiments.molecules.features import Array, Problem, featurise
from equipool.experiments.molecules.molecule_set import PARTS, MoleculeSet
from equipool.settings import check_fields
from equipool.tables import Table, TableError, open_table

Kind = Literal["classification", "regression"]
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class MoleculeSource(ABC):
    """Files of molecules in one format."""

    path: str | Path

    def inside(self, folder: Path) -> Self:
        """The same source with its path relative to a folder."""
        return replace(self, path=folder / self.path)

    @property
    def location(self) -> Path:
        """The file or folder."""
        return Path(self.path).expanduser()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read."""
        return (self.location,)

    @abstractmethod
    def read(self) -> tuple[MoleculeSet, tuple[Problem, ...]]:
        """The molecules, and the problems with them. Raise if the files are broken."""

    def missing(self) -> list[Path]:
        """The files that do not exist."""
        return [file for file in self.files if not file.is_file()]

    def fingerprint(self) -> str:
        """A checksum of the settings and of the files. A run records it, and does not resume if it
        has changed."""
        settings = {name: value for name, value in asdict(self).items() if name != "path"}
        found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for file in self.files:
            with file.open("rb") as opened:
                found.update(hashlib.file_digest(opened, "sha256").digest())
        return found.hexdigest()[:16]


@dataclass(frozen=True)
class SmilesTable(MoleculeSource):
    """A table, CSV, gzipped CSV or Parquet, with a column of SMILES and columns of numeric labels.

    An empty cell, NaN or NA is a missing label. True and False are 1 and 0.

    Args:
        path: the file.
        smiles: the SMILES column.
        labels: the label columns (default: every other column that has a name).
        split: `"scaffold"`, `"random"`, or a column with `train`, `valid` or `test`.
        kind: `"classification"` (labels 0 and 1) or `"regression"` (default: classification if
            every label is 0 or 1).
        keep_unsanitised: whether to keep molecules that RDKit rejects, whatever their valences, if
            their SMILES can be parsed at all.
    """

    smiles: str = "smiles"
    labels: tuple[str, ...] | None = None
    split: str = splits.SCAFFOLD
    kind: Kind | None = None
    keep_unsanitised: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        columns = [*self._text, *(self.labels or ())]
        if len(set(columns)) < len(columns):
            raise ValueError(f"a column has two uses among SMILES, split and labels: {columns}")

    @property
    def _text(self) -> list[str]:
        """The columns of text: the SMILES, and the split if a column has it."""
        return [self.smiles, *({self.split} - {splits.SCAFFOLD, splits.RANDOM})]

    def read(self) -> tuple[MoleculeSet, tuple[Problem, ...]]:
        source, text = open_table(self.location), self._text
        names = self.labels or tuple(n for n in source.columns if n and n not in text)
        if not names:
            raise TableError(f"{self.location} has no label columns")
        try:
            table = source.read([*text, *names], text)
            labels = np.stack([table.numbers(name) for name in names], axis=1)
        except TableError as error:
            advice = "choose the columns with --smiles, --labels and --split"
            raise TableError(f"{error}; {advice}") from error
        not_binary = ~(np.isnan(labels) | (labels == 0) | (labels == 1))
        kind = self.kind or ("regression" if not_binary.any() else "classification")
        if kind == "classification":
            _refuse(table, names, labels, not_binary, "0 or 1 for classification")
        _refuse(table, names, labels, np.abs(labels) > LARGEST, "a finite number of float32")
        codes, values = table.text(self.smiles)
        smiles = ["" if code < 0 else values[code] for code in codes]
        given = _parts_in(table, self.split) if len(text) == 2 else None
        found = featurise(smiles, self.keep_unsanitised, scaffolds=self.split == splits.SCAFFOLD)
        if not found.rows:
            reason = found.problems[0].reason
            raise TableError(f"{self.location}: no molecule could be read: {reason}")
        if given is not None:
            parts = given[found.rows]
        elif self.split == splits.RANDOM:
            parts = splits.random_parts(len(found.rows))
        else:
            parts = splits.scaffold_parts(found.scaffolds)
        molecules = replace(
            found.molecules, label_names=names, kind=kind, parts=torch.from_numpy(parts),
            labels=torch.from_numpy(labels[found.rows].astype(np.float32)),
        )  # fmt: skip
        return molecules, found.problems


def _refuse(
    table: Table, names: tuple[str, ...], labels: Array, wrong: Array, expected: str
) -> None:
    """Raise a `TableError` about the first label that is wrong, if there is one."""
    for row, column in np.argwhere(wrong)[:1]:
        found = f"column {names[column]!r} has {labels[row, column]:g}"
        raise TableError(f"{table.place(row)}: {found}, expected {expected}")


def _parts_in(table: Table, column: str) -> splits.Parts:
    """The part that a column names for each row."""
    codes, cells = table.text(column)
    known = [*map(splits.part_named, cells), splits.NO_PART]  # the last for cells that are missing
    parts = np.array(known, np.uint8)[codes]
    for row in np.flatnonzero(parts == splits.NO_PART)[:1]:
        found = repr(cells[codes[row]]) if codes[row] >= 0 else "no value"
        expected = f"expected {', '.join(PARTS)}"
        raise TableError(f"{table.place(row)}: column {column!r} has {found}, {expected}")
    return parts
