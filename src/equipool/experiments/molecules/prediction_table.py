"""Molecules to predict, read from a file, and the table of their predictions."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from equipool.experiments.molecules.data.load import print_status, with_progress
from equipool.experiments.molecules.data.table import (
    MissingColumnError,
    Row,
    Table,
    read_lines,
)
from equipool.experiments.molecules.predictor import MoleculePredictor

AT_ONCE = 4096  # molecules in memory
STANDARD_INPUT = "-"
TABLES = (".csv",)
LISTS = (".smi", ".txt")


@dataclass(frozen=True)
class Query:
    """A molecule to predict: where it is in the input, its SMILES, and cells to copy."""

    place: str
    smiles: str
    kept: tuple[str, ...] = ()


def read_queries(
    file: str, column: str | None, usual_column: str, keep: Sequence[str] = ()
) -> list[Query]:
    """Molecules of a file: a table with names in its first line, or a list with one SMILES per
    line, of which only the first word is read. Files may be compressed with gzip.

    Args:
        file: .csv, .smi or .txt, optionally followed by .gz; `-` is a list on stdin.
        column: of the table.
        usual_column: if `column` is not given.
        keep: columns of the table to copy.
    """
    path = Path(file)
    ending = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    if file != STANDARD_INPUT and ending in TABLES:
        return _in_table(path, usual_column if column is None else column, keep)
    if file != STANDARD_INPUT and ending not in LISTS:
        endings = ", ".join((*TABLES, *LISTS))
        raise ValueError(f"FILE is {file!r}, expected a file that ends in {endings} or .gz, or -")
    for flag, given in (("--column", column), ("--keep", ",".join(keep) or None)):
        if given is not None:
            raise ValueError(f"{flag} is {given!r}, but {file} has no columns")
    lines: Iterable[str] = sys.stdin if file == STANDARD_INPUT else read_lines(path)
    return [
        Query(f"row {row} (line {row + 1})", next(iter(line.split()), ""))
        for row, line in enumerate(lines)
    ]


def _in_table(path: Path, column: str, keep: Sequence[str]) -> list[Query]:
    table = Table(path)
    try:
        at = table.position(column)
    except MissingColumnError as error:
        raise ValueError(f"{error}; choose the SMILES column with --column") from error
    kept = [table.position(name) for name in keep]

    def query(row: Row) -> Query:
        return Query(str(row), row.cells[at], tuple(row.cells[one] for one in kept))

    return list(table.read(query))


def write_predictions(
    predictor: MoleculePredictor, queries: Sequence[Query], keep: Sequence[str], out: TextIO
) -> int:
    """Write a row for each molecule after the names of the columns, those to `keep` first. Returns
    the number of molecules that could not be read; their rows have empty cells."""
    writer = csv.writer(out, lineterminator="\n")
    written = ["smiles", *predictor.label_names]
    writer.writerow([*(f"given {name}" if name in written else name for name in keep), *written])
    batches: Iterable[Sequence[Query]] = (
        queries[first : first + AT_ONCE] for first in range(0, len(queries), AT_ONCE)
    )
    if len(queries) > AT_ONCE:
        batches = with_progress(batches, "molecules", len(queries), len)
    return sum(_write_some(predictor, some, writer) for some in batches)


def _write_some(predictor: MoleculePredictor, queries: Sequence[Query], writer: Any) -> int:
    found = predictor.predict([one.smiles for one in queries])
    unread = {problem.row for problem in found.problems if not problem.kept}
    for row, (one, values) in enumerate(zip(queries, found.values.numpy(), strict=True)):
        # str gives as few digits as identify the number
        cells = ("" if row in unread else str(value) for value in values)
        writer.writerow([*one.kept, one.smiles, *cells])
    for problem in found.problems:
        kept = " (predicted nevertheless)" if problem.kept else ""
        place = queries[problem.row].place
        print_status(f"{place}: {problem.smiles!r}: {problem.reason}{kept}")
    return len(unread)
