"""Files that molecules are read from, and their splits into training, validation and test
molecules."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import csv

from equipool.experiments.molecules.features import Array, Problem, featurise
from equipool.experiments.molecules.molecule_set import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    PARTS,
    MoleculeSet,
)
from equipool.settings import check_fields
from equipool.tables import Table, TableError, open_table, table_errors

Kind = Literal["classification", "regression"]
SCAFFOLD, RANDOM = "scaffold", "random"
TRAIN, VALID, TEST, NO_PART = range(len(PARTS) + 1)
TRAIN_SHARE, TEST_SHARE = 0.8, 0.1
ADVICE = "; choose the columns with --smiles, --labels and --split"
LARGEST = float(np.finfo(np.float32).max)
MOST = 2**31 - 1  # of whatever is counted


@dataclass(frozen=True)
class MoleculeSource(ABC):
    """Files of molecules in one format."""

    path: str | Path

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
    split: str = SCAFFOLD
    kind: Kind | None = None
    keep_unsanitised: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def read(self) -> tuple[MoleculeSet, tuple[Problem, ...]]:
        source = open_table(self.location)
        text = [self.smiles, *({self.split} - {SCAFFOLD, RANDOM})]
        names = self.labels or tuple(n for n in source.columns if n and n not in text)
        if not names:
            raise TableError(f"{self.location} has no label columns")
        table = source.read([*text, *names], text)
        labels = np.stack([table.numbers(name, ADVICE) for name in names], axis=1)
        not_binary = ~(np.isnan(labels) | (labels == 0) | (labels == 1))
        kind = self.kind or ("regression" if not_binary.any() else "classification")
        wrong, expected = np.abs(labels) > LARGEST, "a finite number of float32"
        if kind == "classification":
            wrong, expected = not_binary, "0 or 1 for classification"
        for row, column in np.argwhere(wrong)[:1]:
            cell = f"column {names[column]!r} has {labels[row, column]:g}"
            raise TableError(f"{table.place(row)}: {cell}, expected {expected}")
        codes, values = table.text(self.smiles)
        smiles = ["" if code < 0 else values[code] for code in codes]
        found = featurise(smiles, self.keep_unsanitised, scaffolds=self.split == SCAFFOLD)
        if not found.rows:
            reason = found.problems[0].reason
            raise TableError(f"{self.location}: no molecule could be read: {reason}")
        if self.split == SCAFFOLD:
            parts = scaffold_parts(found.scaffolds)
        elif self.split == RANDOM:
            parts = random_parts(len(found.rows))
        else:
            parts = _parts_in(table, self.split)[found.rows]
        molecules = replace(
            found.molecules, label_names=names, kind=kind, parts=torch.from_numpy(parts),
            labels=torch.from_numpy(labels[found.rows].astype(np.float32)),
        )  # fmt: skip
        return molecules, found.problems


def _parts_in(table: Table, column: str) -> Array:
    """The part that a column names for each row, as an index into `PARTS`."""
    codes, cells = table.text(column)
    known = [PARTS.index(cell) if cell in PARTS else NO_PART for cell in cells]
    parts = np.array([*known, NO_PART], np.uint8)[codes]  # the last for cells that are missing
    for row in np.flatnonzero(parts == NO_PART)[:1]:
        found = repr(cells[codes[row]]) if codes[row] >= 0 else "no value"
        expected = f"expected {', '.join(PARTS)}"
        raise TableError(f"{table.place(row)}: column {column!r} has {found}, {expected}")
    return parts


def scaffold_parts(scaffolds: Sequence[str]) -> Array:
    """OGB's split: molecules with the same scaffold stay together.

    Scaffolds are taken by size, largest first (among equals, the last to appear), and fill the
    training part, then the validation part, then the test part. The test part therefore has the
    rarest scaffolds.
    """
    groups: dict[str, list[int]] = {}
    for row, scaffold in enumerate(scaffolds):
        groups.setdefault(scaffold, []).append(row)
    total, used = len(scaffolds), [0, 0]
    parts = np.full(total, TEST, np.uint8)
    for rows in sorted(groups.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
        if used[TRAIN] + len(rows) <= TRAIN_SHARE * total:
            part = TRAIN
        elif sum(used) + len(rows) <= (1 - TEST_SHARE) * total:
            part = VALID
        else:
            continue
        parts[rows] = part
        used[part] += len(rows)
    return parts


def random_parts(number: int) -> Array:
    """A random split, always the same for a number of molecules."""
    order = torch.randperm(number, generator=torch.Generator().manual_seed(0)).numpy()
    parts = np.full(number, TEST, np.uint8)
    parts[order[: round((1 - TEST_SHARE) * number)]] = VALID
    parts[order[: round(TRAIN_SHARE * number)]] = TRAIN
    return parts


@dataclass(frozen=True)
class OgbFolder(MoleculeSource):
    """The compressed CSV files in `raw/`, `split/` and `mapping/` of an OGB data set of molecules
    with labels 0 and 1. The pickles in `processed/` are not read."""

    @property
    def files(self) -> tuple[Path, ...]:
        raw = ("num-node-list", "num-edge-list", "node-feat", "edge-feat", "edge", "graph-label")
        names = *(f"raw/{name}" for name in raw), *(f"split/scaffold/{part}" for part in PARTS)
        return tuple(map(self._file, names))

    def _file(self, name: str) -> Path:
        return self.location / f"{name}.csv.gz"

    def read(self) -> tuple[MoleculeSet, tuple[Problem, ...]]:
        num_atoms = self._integers("raw/num-node-list")
        num_bonds = self._integers("raw/num-edge-list", number := len(num_atoms))
        atoms = self._integers("raw/node-feat", num_atoms.sum(), ATOM_CATEGORIES)
        bonds = self._integers("raw/edge-feat", num_bonds.sum(), BOND_CATEGORIES)
        ends = self._integers("raw/edge", num_bonds.sum(), num_atoms.repeat(num_bonds)[:, None])
        both_directions = np.concatenate([ends, ends[:, ::-1]], axis=1).reshape(-1, 2)
        arrays = (num_atoms, 2 * num_bonds, atoms.astype(np.uint8),
                  bonds.astype(np.uint8).repeat(2, axis=0), both_directions)  # fmt: skip
        labels = self._numbers("raw/graph-label", pa.float32(), number)
        parts = np.full(number, NO_PART, np.uint8)
        for part, name in enumerate(PARTS):
            parts[self._integers(f"split/scaffold/{name}", None, number)] = part
        columns = open_table(self._file("mapping/mol")).columns
        molecules = replace(
            MoleculeSet.of(*map(torch.from_numpy, arrays)),
            labels=torch.from_numpy(labels), parts=torch.from_numpy(parts),
            label_names=tuple(name for name in columns if name not in ("smiles", "mol_id")),
        )  # fmt: skip
        return molecules, ()

    def _integers(self, name: str, rows: int | None = None, sizes: npt.ArrayLike = MOST) -> Array:
        """A file of whole numbers from 0 to sizes - 1, which is broadcast: `[rows, columns]` int32,
        or `[rows]` if there is one column."""
        found = self._numbers(name, pa.int32(), rows)
        if not ((found >= 0) & (found < sizes)).all():
            raise TableError(f"{self._file(name)} has a number out of range")
        return found.squeeze(1) if found.shape[1] == 1 else found

    def _numbers(self, name: str, kind: pa.DataType, rows: int | None) -> Array:
        """A gzipped file of numbers without a header, NaN for an empty cell: `[rows, columns]`."""
        file = self._file(name)
        with table_errors(str(file)):
            table = csv.read_csv(
                file, csv.ReadOptions(use_threads=False, autogenerate_column_names=True),
                csv.ParseOptions(ignore_empty_lines=False),
            )  # fmt: skip
            columns = [column.cast(kind).to_numpy() for column in table.columns]
        if rows is not None and len(table) != rows:
            raise TableError(f"{file} has {len(table):,} lines, expected {rows:,}")
        return np.stack(columns, axis=1)
