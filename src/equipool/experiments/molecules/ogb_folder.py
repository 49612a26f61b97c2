"""The data set folders of the `ogb` package."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv

from equipool.experiments.molecules import molecule_set
from equipool.experiments.molecules.features import Array, Problem
from equipool.experiments.molecules.molecule_set import PARTS, MoleculeSet
from equipool.experiments.molecules.sources import MoleculeSource
from equipool.experiments.molecules.splits import NO_PART, Parts
from equipool.tables import TableError, open_table, table_errors

RAW = ("num-node-list", "num-edge-list", "node-feat", "edge-feat", "edge", "graph-label")
MOST = 2**24  # of whatever is counted: float32 has all smaller numbers


@dataclass(frozen=True)
class OgbFolder(MoleculeSource):
    """The compressed CSV files in `raw/`, `split/` and `mapping/` of an OGB data set of molecules
    with labels 0 and 1. The pickles in `processed/` are not read."""

    @property
    def files(self) -> tuple[Path, ...]:
        names = *(f"raw/{name}" for name in RAW), *(f"split/scaffold/{part}" for part in PARTS)
        return tuple(map(self._file, names))

    def _file(self, name: str) -> Path:
        return self.location / f"{name}.csv.gz"

    def read(self) -> tuple[MoleculeSet, tuple[Problem, ...]]:
        num_atoms = _integers(self._file("raw/num-node-list"), [MOST])[:, 0]
        number, total = len(num_atoms), num_atoms.sum()
        num_bonds = _integers(self._file("raw/num-edge-list"), [MOST], number)[:, 0]
        atoms = _integers(self._file("raw/node-feat"), molecule_set.ATOM_CATEGORIES, total)
        total = num_bonds.sum()
        bonds = _integers(self._file("raw/edge-feat"), molecule_set.BOND_CATEGORIES, total)
        ends = _integers(self._file("raw/edge"), [MOST, MOST], total)
        if (ends >= num_atoms.repeat(num_bonds)[:, None]).any():
            raise TableError(f"{self._file('raw/edge')} has a bond to an atom of another molecule")
        both_directions = np.concatenate([ends, ends[:, ::-1]], axis=1).reshape(-1, 2).T
        arrays = (num_atoms, 2 * num_bonds, atoms.astype(np.uint8),
                  bonds.astype(np.uint8).repeat(2, axis=0), both_directions)  # fmt: skip
        molecules = MoleculeSet.of(*map(torch.from_numpy, arrays))
        labels, parts = torch.from_numpy(self._labels(number)), torch.from_numpy(self.parts(number))
        names = self._label_names(labels.shape[1])
        return replace(molecules, labels=labels, parts=parts, label_names=names), ()

    def parts(self, number: int) -> Parts:
        """The part of each of so many molecules."""
        parts = np.full(number, NO_PART, np.uint8)
        for part, name in enumerate(PARTS):
            file = self._file(f"split/scaffold/{name}")
            positions = _integers(file, [number])[:, 0]
            if (parts[positions] != NO_PART).any() or len(np.unique(positions)) != len(positions):
                raise TableError(f"{file} lists a molecule twice, or one of another part")
            parts[positions] = part
        return parts

    def _labels(self, number: int) -> Array:
        file = self._file("raw/graph-label")
        labels = np.stack(_columns(file, number), axis=1)
        if not (np.isnan(labels) | (labels == 0) | (labels == 1)).all():
            raise TableError(f"{file} has a label other than 0 and 1")
        return labels

    def _label_names(self, number: int) -> tuple[str, ...]:
        names: tuple[str, ...] = ()
        if (file := self._file("mapping/mol")).is_file():
            columns = open_table(file).columns
            names = tuple(name for name in columns if name not in ("smiles", "mol_id"))
        return names if len(names) == number else tuple(f"task {task}" for task in range(number))


def _integers(file: Path, sizes: Sequence[int], number: int | None = None) -> Array:
    """A file of whole numbers, `[number, len(sizes)]` int32, from 0 to its size - 1 in each
    column."""
    columns = _columns(file, number, len(sizes))
    for size, column in zip(sizes, columns, strict=True):
        for line in np.flatnonzero(~((column >= 0) & (column < size) & (column % 1 == 0)))[:1]:
            found = f"found {column[line]:g}, expected a whole number from 0 to {size - 1}"
            raise TableError(f"{file}, line {line + 1}: {found}")
    return np.stack(columns, axis=1).astype(np.int32)


def _columns(file: Path, number: int | None = None, width: int | None = None) -> list[Array]:
    """The columns of a gzipped file of numbers without a header, NaN for an empty cell."""
    with table_errors(str(file)):
        content = gzip.decompress(file.read_bytes())
        if not content:
            return [np.empty(0, np.float32)] * (width or 1)
        table = csv.read_csv(
            io.BytesIO(content),
            csv.ReadOptions(use_threads=False, autogenerate_column_names=True),
            csv.ParseOptions(ignore_empty_lines=False),
        )
        if table.num_columns != (width or table.num_columns):
            raise TableError(f"{file} has {table.num_columns} columns, expected {width}")
        if number is not None and table.num_rows != number:
            raise TableError(f"{file} has {table.num_rows:,} lines, expected {number:,}")
        return [column.cast(pa.float32()).to_numpy() for column in table.columns]
