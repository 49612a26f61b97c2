"""Molecules from a CSV table of SMILES and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from equipool.experiments.molecules.data import featurize
from equipool.experiments.molecules.data.featurize import Chunk, LeaveOut, SmilesRows, Unparsable
from equipool.experiments.molecules.data.molecule_set import KINDS
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.splits import GroupIndex, Parts, ScaffoldSplit, Split
from equipool.experiments.molecules.data.table import (
    Complaints,
    Row,
    Table,
    TableError,
    parse_number,
)

ROWS_PER_BATCH = 512
ALL_COLUMNS = "  Every other column was read as a label; choose the label columns with --labels"


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
        unparsable: what to do with molecules that RDKit rejects.
    """

    smiles: str = "smiles"
    labels: tuple[str, ...] | None = None
    split: Split = ScaffoldSplit()  # noqa: RUF009 - frozen
    kind: str | None = None
    unparsable: Unparsable = LeaveOut()  # noqa: RUF009 - frozen

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
            "unparsable": repr(self.unparsable),
        }

    def examine(self) -> Contents:
        """Read the whole table, to report every broken row before the work begins."""
        table = Table(self.location)
        columns = _Columns(table, self)
        complaints = Complaints(table.path)
        num_rows, not_binary = 0, ""
        for row in table.rows():
            num_rows += 1
            try:
                found = columns.check(row)
                not_binary = not_binary or found
            except ValueError as error:
                complaints.add(row, str(error))
        complaints.raise_any("" if self.labels is not None else ALL_COLUMNS)
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
        return featurize.featurize_all(batches, num_rows, self.split, self.unparsable)

    def assign(self, groups: GroupIndex) -> Parts:
        return self.split.assign(groups)

    def batches(self) -> Iterator[SmilesRows]:
        """The rows of the table, some at a time."""
        table = Table(self.location)
        columns = _Columns(table, self)
        rows = table.rows()
        while some := list(islice(rows, ROWS_PER_BATCH)):
            labels = np.array([columns.labels(row) for row in some], np.float32)
            yield SmilesRows(
                rows=[row.number for row in some],
                smiles=[columns.smiles(row) for row in some],
                split_cells=[columns.split_cell(row) for row in some],
                labels=labels.reshape(len(some), len(columns.names)),
            )


class _Columns:
    """Reads the cells of a row that a source uses."""

    def __init__(self, table: Table, source: CsvSource) -> None:
        self._source = source
        self._width = len(table.columns)
        self._smiles = table.position(source.smiles)
        column = source.split.column
        self._split = None if column is None else table.position(column)
        taken = ("", source.smiles, column)  # spreadsheets add columns without a name
        named = tuple(name for name in table.columns if name not in taken)
        self.names = named if source.labels is None else source.labels
        if not self.names:
            raise TableError(f"{table.path} has no label columns")
        self._labels = [table.position(name) for name in self.names]

    def smiles(self, row: Row) -> str:
        return row.cells[self._smiles].strip()

    def split_cell(self, row: Row) -> str:
        return "" if self._split is None else row.cells[self._split]

    def labels(self, row: Row) -> list[float]:
        return [parse_number(row.cells[at]) for at in self._labels]

    def check(self, row: Row) -> str:
        """Names the first label of the row that is not 0, 1 or missing; "" if there is none. Raises
        `ValueError` if the row is broken."""
        if len(row.cells) != self._width:
            raise ValueError(f"expected {self._width} cells, found {len(row.cells)}")
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
