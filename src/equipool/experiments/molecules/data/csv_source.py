"""A table of SMILES and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from equipool.experiments.molecules.data.cells import number_in
from equipool.experiments.molecules.data.extras import check_extras
from equipool.experiments.molecules.data.featurising import featurised
from equipool.experiments.molecules.data.graphs import KINDS
from equipool.experiments.molecules.data.groups import Groups
from equipool.experiments.molecules.data.making import Batch
from equipool.experiments.molecules.data.pieces import Piece
from equipool.experiments.molecules.data.smiles import LeaveOut, Unparsable
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.splits import Parts, ScaffoldSplit, Split
from equipool.experiments.molecules.data.table import Complaints, Row, Table, TableError

PER_BATCH = 512
ALL_LABELS = (
    "  As no labels were named, all other columns were taken for labels: --labels names them"
)


@dataclass(frozen=True)
class CsvSource(MoleculeSource):
    """A CSV file, packed with gzip or not, with a column of SMILES and columns of numbers.

    An empty cell, NaN or NA is a missing label; True and False are 1 and 0.

    Args:
        path: the file.
        smiles: the column of SMILES.
        labels: the columns of labels; None for all that are left and have a name.
        split: how to part the molecules.
        kind: `"classification"` (labels 0 and 1) or `"regression"`; None for classification where
            all labels are 0 or 1.
        unparsable: what becomes of molecules that RDKit refuses.
    """

    path: str | Path
    smiles: str = "smiles"
    labels: tuple[str, ...] | None = None
    split: Split = ScaffoldSplit()  # noqa: RUF009 - frozen
    kind: str | None = None
    unparsable: Unparsable = LeaveOut()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if self.kind not in (None, *KINDS):
            raise ValueError(f"kind: expected one of {KINDS} or None, found {self.kind!r}")
        if self.labels is not None:
            names = tuple(name.strip() for name in self.labels)  # as a table's are
            object.__setattr__(self, "labels", names)
            self._check_labels(names)

    def inside(self, folder: Path) -> CsvSource:
        return replace(self, path=folder / self.path)

    @property
    def location(self) -> Path:
        return Path(self.path).expanduser()

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
        """Read the whole table, so that what is broken is known before the work begins."""
        table = Table(self.location)
        columns = _Columns(table, self)
        complaints = Complaints(table.path)
        num_rows, number = 0, ""
        for row in table.rows():
            num_rows += 1
            try:
                labels = columns.check(row)
            except ValueError as error:
                complaints.add(row, str(error))
            else:
                number = number or columns.number(row, labels)
        complaints.raise_any("" if self.labels is not None else ALL_LABELS)
        if not num_rows:
            raise TableError(f"{table.path} has no rows: expected some below the columns' names")
        if self.kind is not None:
            return Contents(num_rows, columns.label_names, self.kind)
        kind = "regression" if number else "classification"
        why = number or "all labels are 0, 1 or missing"
        return Contents(num_rows, columns.label_names, kind, why)

    def pieces(self, contents: Contents) -> Iterator[Piece]:
        check_extras()
        return featurised(self._batches(), contents.num_rows, self.split, self.unparsable)

    def divide(self, groups: Groups) -> Parts:
        return self.split.divide(groups)

    def _batches(self) -> Iterator[Batch]:
        table = Table(self.location)
        columns = _Columns(table, self)
        rows = table.rows()
        while some := list(islice(rows, PER_BATCH)):
            labels = np.array([columns.labels(row) for row in some], np.float32)
            yield Batch(
                rows=[row.number for row in some],
                smiles=[columns.smiles(row) for row in some],
                cells=[columns.cell(row) for row in some],
                labels=labels.reshape(len(some), len(columns.label_names)),
            )

    def _check_labels(self, labels: tuple[str, ...]) -> None:
        taken = {"the SMILES": self.smiles, "the split": self.split.column}
        for use, column in taken.items():
            if column in labels:
                raise ValueError(f"labels: {column!r} is the column of {use}")
        if len(set(labels)) != len(labels):
            raise ValueError(f"labels: expected each column once, found {labels}")


class _Columns:
    """Where in a row of the table the source finds its things."""

    def __init__(self, table: Table, source: CsvSource) -> None:
        self._source = source
        self._width = len(table.columns)
        self._smiles = table.position(source.smiles)
        column = source.split.column
        self._cell = None if column is None else table.position(column)
        taken = ("", source.smiles, column)  # a column without a name is a spreadsheet's
        names = source.labels
        if names is None:
            names = tuple(name for name in table.columns if name not in taken)
            if not names:
                raise TableError(f"{table.path} has no columns of labels")
        self.label_names = names
        self._labels = [table.position(name) for name in names]

    def smiles(self, row: Row) -> str:
        return row.cells[self._smiles].strip()

    def cell(self, row: Row) -> str:
        return "" if self._cell is None else row.cells[self._cell]

    def labels(self, row: Row) -> list[float]:
        return [number_in(row.cells[at]) for at in self._labels]

    def number(self, row: Row, labels: list[float]) -> str:
        """Words for the first of the row's labels that is no class; "" where all are."""
        for name, at, label in zip(self.label_names, self._labels, labels, strict=True):
            if not _is_binary(label):
                return f"column {name!r} has {row.cells[at]!r} in {row}"
        return ""

    def check(self, row: Row) -> list[float]:
        """Raise `ValueError` where the row is broken; else give its labels."""
        if len(row.cells) != self._width:
            raise ValueError(f"expected {self._width} cells, found {len(row.cells)}")
        if self._cell is not None:
            self._source.split.check_cell(row.cells[self._cell])
        numbers = []
        for name, at in zip(self.label_names, self._labels, strict=True):
            try:
                numbers.append(number_in(row.cells[at]))
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None
            if self._source.kind == "classification" and not _is_binary(numbers[-1]):
                raise ValueError(f"column {name!r}: expected 0 or 1, found {row.cells[at]!r}")
        return numbers


def _is_binary(number: float) -> bool:
    return number in (0.0, 1.0) or math.isnan(number)
