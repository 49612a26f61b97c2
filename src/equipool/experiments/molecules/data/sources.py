"""Where molecules come from: the base class of sources, and CSV tables."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from equipool.experiments.molecules.data import featurize
from equipool.experiments.molecules.data.featurize import Chunk, SmilesRows
from equipool.experiments.molecules.data.molecule_set import KINDS
from equipool.experiments.molecules.data.splits import GroupIndex, Parts, ScaffoldSplit, Split
from equipool.experiments.molecules.data.table import Row, Table, TableError, parse_number

ROWS_PER_BATCH = 512
ALL_COLUMNS = "  Every other column was read as a label; choose the label columns with --labels"


@dataclass(frozen=True)
class Contents:
    """What a source contains, known before its molecules are read."""

    num_rows: int
    label_names: tuple[str, ...]
    kind: str
    reason: str = ""  # why it is of this kind, if that was inferred


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
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that are read."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """The settings that, with the files, determine the result; JSON-serialisable."""

    @abstractmethod
    def examine(self) -> Contents:
        """Check the files and read what is quick to read. Raise if they are broken."""

    @abstractmethod
    def chunks(self, contents: Contents) -> Iterator[Chunk]:
        """The molecules in the source's order, some at a time."""

    @abstractmethod
    def assign(self, groups: GroupIndex) -> Parts:
        """The split part of each molecule, once all have been read."""

    def missing(self) -> list[Path]:
        """The files that do not exist."""
        return [file for file in self.files if not file.is_file()]

    def fingerprint(self) -> dict[str, Any]:
        """The recipe, and the name, size and SHA-256 of each file.

        Runs record its hash and refuse to resume if it has changed, so its form must stay stable.
        """
        files = []
        for file in self.files:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            files.append({"name": file.name, "size": file.stat().st_size, "sha256": digest})
        return {"recipe": self.recipe(), "files": files}


@dataclass(frozen=True)
class CsvSource(MoleculeSource):
    """A CSV file, optionally gzipped, with a column of SMILES and columns of numeric labels.

    An empty cell, NaN or NA is a missing label. True and False are 1 and 0.

    Args:
        path: the file.
        smiles: the SMILES column.
        labels: the label columns (default: every other column that has a name).
        split: how to split the molecules.
        kind: `"classification"` (labels 0 and 1) or `"regression"` (default: classification if
            every label is 0 or 1).
        keep_unsanitised: whether to keep molecules that RDKit rejects, whatever their valences, if
            their SMILES can be parsed at all.
    """

    smiles: str = "smiles"
    labels: tuple[str, ...] | None = None
    split: Split = ScaffoldSplit()  # noqa: RUF009 - frozen
    kind: str | None = None
    keep_unsanitised: bool = False

    def __post_init__(self) -> None:
        if self.kind not in (None, *KINDS):
            raise ValueError(f"kind: expected one of {KINDS} or None, found {self.kind!r}")
        if self.labels is not None:
            names = tuple(name.strip() for name in self.labels)  # as column names are
            object.__setattr__(self, "labels", names)
            for use, column in (("SMILES", self.smiles), ("split", self.split.column)):
                if column in names:
                    raise ValueError(f"labels: {column!r} is the {use} column")
            if len(set(names)) != len(names):
                raise ValueError(f"labels: expected each column once, found {names}")

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.location,)

    def recipe(self) -> dict[str, Any]:
        return {
            "smiles": self.smiles,
            "labels": None if self.labels is None else list(self.labels),
            "split": repr(self.split),
            "kind": self.kind,
            "unparsable": "KeepUnsanitised()" if self.keep_unsanitised else "LeaveOut()",
        }

    def examine(self) -> Contents:
        """Read the whole table, to report every broken row before the work begins."""
        table = Table(self.location)
        columns = _Columns(table, self)
        num_rows, not_binary = 0, ""
        for found in table.read(columns.check, "" if self.labels is not None else ALL_COLUMNS):
            num_rows += 1
            not_binary = not_binary or found
        if not num_rows:
            raise TableError(f"{table.path} has no data rows below the column names")
        if self.kind is not None:
            return Contents(num_rows, columns.names, self.kind)
        kind = "regression" if not_binary else "classification"
        reason = not_binary or "all labels are 0, 1 or missing"
        return Contents(num_rows, columns.names, kind, reason)

    def chunks(self, contents: Contents) -> Iterator[Chunk]:
        featurize.check_extras()
        batches, num_rows = self.batches(), contents.num_rows
        return featurize.featurize_all(batches, num_rows, self.split, self.keep_unsanitised)

    def assign(self, groups: GroupIndex) -> Parts:
        return self.split.assign(groups)

    def batches(self) -> Iterator[SmilesRows]:
        """The rows of the table, some at a time."""
        table = Table(self.location)
        rows = table.read(_Columns(table, self).parse)
        while some := list(islice(rows, ROWS_PER_BATCH)):
            numbers, smiles, cells, labels = zip(*some, strict=True)
            yield SmilesRows(numbers, smiles, cells, np.array(labels, np.float32))


class _Columns:
    """Reads the cells of a row that a source uses."""

    def __init__(self, table: Table, source: CsvSource) -> None:
        self._source = source
        self._smiles = table.position(source.smiles)
        column = source.split.column
        self._split = None if column is None else table.position(column)
        taken = ("", source.smiles, column)  # spreadsheets add columns without a name
        named = tuple(name for name in table.columns if name not in taken)
        self.names = named if source.labels is None else source.labels
        if not self.names:
            raise TableError(f"{table.path} has no label columns")
        self._labels = [table.position(name) for name in self.names]

    def parse(self, row: Row) -> tuple[int, str, str, list[float]]:
        """The number of the row, its SMILES, the cell of the split's column and the labels."""
        cell = "" if self._split is None else row.cells[self._split]
        labels = [parse_number(row.cells[at]) for at in self._labels]
        return row.number, row.cells[self._smiles].strip(), cell, labels

    def check(self, row: Row) -> str:
        """Names the first label of the row that is not 0, 1 or missing; "" if there is none. Raises
        `ValueError` if the row is broken."""
        if self._split is not None:
            self._source.split.check_cell(row.cells[self._split])
        not_binary = ""
        for name, at in zip(self.names, self._labels, strict=True):
            cell = row.cells[at]
            try:
                number = parse_number(cell)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None
            if number not in (0.0, 1.0) and not math.isnan(number):
                if self._source.kind == "classification":
                    raise ValueError(f"column {name!r}: expected 0 or 1, found {cell!r}")
                not_binary = not_binary or f"column {name!r} has {cell!r} in {row}"
        return not_binary
