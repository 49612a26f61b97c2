"""Molecules from a data set folder of the `ogb` package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from equipool.experiments.molecules.data.featurize import MAX_ATOMS, Array, Chunk
from equipool.experiments.molecules.data.molecule_set import ATOM_CATEGORIES, BOND_CATEGORIES, PARTS
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.splits import GroupIndex, Parts
from equipool.experiments.molecules.data.table import Table, TableError, read_lines

CHUNK_SIZE = 4096
UNUSED = 255  # the molecule is in no part
NOT_LABELS = ("smiles", "mol_id")


@dataclass(frozen=True)
class OgbFolder(MoleculeSource):
    """The compressed CSV files in `raw/`, `split/` and `mapping/` of an OGB molecule data set.

    The pickles in `processed/` are not read. The files list each bond once, and `num-edge-list`
    counts it once; it is read in both directions.

    `kind` is `"classification"` or `"regression"`.
    """

    kind: str = "classification"

    @property
    def files(self) -> tuple[Path, ...]:
        raw = ("num-node-list", "num-edge-list", "node-feat", "edge-feat", "edge", "graph-label")
        return (
            *(self._raw(name) for name in raw),
            *(self._split(part) for part in PARTS),
            *(file for file in [self._mapping] if file.is_file()),  # label names
        )

    def recipe(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def examine(self) -> Contents:
        num_atoms, num_bonds = self.counts()
        for name, counts in (("num-node-list", num_atoms), ("num-edge-list", num_bonds)):
            if counts.min(initial=0) < 0:
                found = counts.min()
                raise TableError(f"{self._raw(name)}: expected counts of at least 0, found {found}")
        if len(num_atoms) != len(num_bonds):
            raise TableError(
                f"{self.location / 'raw'}: num-node-list has {len(num_atoms):,} molecules, "
                f"num-edge-list {len(num_bonds):,}"
            )
        if (largest := num_atoms.max(initial=0)) > MAX_ATOMS:
            where = self._raw("num-node-list")
            raise TableError(f"{where}: expected at most {MAX_ATOMS:,} atoms, found {largest:,}")
        first = next(read_lines(self._raw("graph-label")), "")
        return Contents(len(num_atoms), self._label_names(first.count(",") + 1), self.kind)

    def counts(self) -> tuple[Array, Array]:
        """The number of atoms and of bonds of each molecule, `[G]` and `[G]`."""
        return _numbers(self._raw("num-node-list")), _numbers(self._raw("num-edge-list"))

    def chunks(self, contents: Contents) -> Iterator[Chunk]:
        num_atoms, num_bonds = self.counts()
        names = ("node-feat", "edge-feat", "edge", "graph-label")
        readers = {name: _Rows(self._raw(name)) for name in names}
        width = len(contents.label_names)
        for start in range(0, len(num_atoms), CHUNK_SIZE):
            some = slice(start, start + CHUNK_SIZE)
            yield self._chunk(readers, start, num_atoms[some], num_bonds[some], width)
        for rows in readers.values():
            rows.check_end()

    def assign(self, groups: GroupIndex) -> Parts:
        parts = np.full(len(groups), UNUSED, np.uint8)
        for number, file in enumerate(map(self._split, PARTS)):
            positions = _numbers(file)
            if positions.size and not 0 <= positions.min() <= positions.max() < len(groups):
                found = f"{positions.min()} to {positions.max()}"
                raise TableError(f"{file}: expected positions below {len(groups):,}, found {found}")
            if (parts[positions] != UNUSED).any():
                raise TableError(f"{file}: a molecule is also in another part")
            if np.unique(positions).size != positions.size:
                raise TableError(f"{file}: a molecule is listed twice")
            parts[positions] = number
        return parts

    def _chunk(
        self, readers: dict[str, _Rows], start: int, num_atoms: Array, num_bonds: Array, width: int
    ) -> Chunk:
        number, atoms, bonds = len(num_atoms), int(num_atoms.sum()), int(num_bonds.sum())
        once = readers["edge"].integers(bonds, (MAX_ATOMS + 1,) * 2).astype(np.int16)
        both = np.stack([once, once[:, ::-1]], axis=1).reshape(-1, 2)  # both directions
        self._check_ends(once, start, num_atoms, num_bonds)
        features = readers["edge-feat"].integers(bonds, BOND_CATEGORIES)
        labels = readers["graph-label"].floats(number, width)
        self._check_labels(labels, start)
        return Chunk(
            num_atoms.astype(np.int32),
            (2 * num_bonds).astype(np.int32),
            readers["node-feat"].integers(atoms, ATOM_CATEGORIES).astype(np.uint8),
            features.astype(np.uint8).repeat(2, axis=0),
            both.T, labels, np.arange(start, start + number, dtype=np.int64),
            groups=("",) * number, problems=(), num_rows=number,
        )  # fmt: skip

    def _check_ends(self, ends: Array, start: int, num_atoms: Array, num_bonds: Array) -> None:
        molecules = np.arange(len(num_atoms)).repeat(num_bonds)
        beyond = (ends >= num_atoms[molecules, None]).any(1)
        if beyond.any():
            at = beyond.argmax()
            raise TableError(
                f"{self._raw('edge')}: molecule {start + molecules[at]:,} (from 0) has "
                f"{num_atoms[molecules[at]]} atoms, found a bond between {ends[at].tolist()}"
            )

    def _check_labels(self, labels: Array, start: int) -> None:
        wrong = ~(np.isnan(labels) | (labels == 0) | (labels == 1))
        if self.kind == "classification" and wrong.any():
            raise TableError(
                f"{self._raw('graph-label')}: molecule {start + wrong.any(1).argmax():,} (from 0): "
                f"expected 0, 1 or missing for classification, found {labels[wrong][0]}"
            )

    def _label_names(self, number: int) -> tuple[str, ...]:
        if self._mapping.is_file():
            names = [name for name in Table(self._mapping).columns if name not in NOT_LABELS]
            if len(names) == len(set(names)) == number:
                return tuple(names)
        return tuple(f"task {task}" for task in range(number))

    def _raw(self, name: str) -> Path:
        return self.location / "raw" / f"{name}.csv.gz"

    def _split(self, part: str) -> Path:
        return self.location / "split" / "scaffold" / f"{part}.csv.gz"

    @property
    def _mapping(self) -> Path:
        return self.location / "mapping" / "mol.csv.gz"


class _Rows:
    """Reads rows of numbers, some at a time, from a file without a header."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines, self._read = path, read_lines(path), 0

    def integers(self, number: int, categories: tuple[int, ...]) -> Array:
        """The next rows, `[number, len(categories)]`; each column is below its categories."""
        return self._parse(np.int64, number, len(categories), categories)

    def floats(self, number: int, width: int) -> Array:
        """The next rows, `[number, width]`; NaN for an empty cell."""
        return self._parse(np.float32, number, width)

    def check_end(self) -> None:
        """Raise if there are more rows."""
        if next(self._lines, "").strip():
            raise TableError(f"{self._path}: expected {self._read:,} lines, found more")

    def _parse(
        self, dtype: type, number: int, width: int, categories: tuple[int, ...] = ()
    ) -> Array:
        if not number:
            return np.empty((0, width), dtype)
        lines = list(islice(self._lines, number))
        if len(lines) != number:
            counts = f"{self._read + number:,} lines, found {self._read + len(lines):,}"
            raise TableError(f"{self._path}: expected at least {counts}")
        if not categories:
            filled = ((cell or "nan" for cell in line.strip().split(",")) for line in lines)
            lines = [",".join(cells) for cells in filled]
        try:
            found: Array = np.loadtxt(lines, dtype, delimiter=",", ndmin=2, comments=None)
            if found.shape != (number, width):
                raise ValueError(f"expected rows of {width} numbers, found {found.shape[1]}")
            if np.isinf(found).any():
                raise ValueError("expected finite numbers, found an infinite one")
            if categories and (found.min() < 0 or (found >= categories).any()):
                values = f"{found.min(0).tolist()} to {found.max(0).tolist()}"
                raise ValueError(f"expected numbers below {categories}, found {values}")
        except ValueError as error:
            raise TableError(f"{self._path}, after line {self._read:,}: {error}") from error
        self._read += number
        return found


def _numbers(file: Path) -> Array:
    text = "".join(read_lines(file))
    try:
        return np.array(text.split(), dtype=np.int64)
    except ValueError as error:
        raise TableError(f"{file}: expected a number in each line: {error}") from error
