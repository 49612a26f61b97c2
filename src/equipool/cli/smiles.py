"""Molecules that a command is asked about."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipool.experiments.molecules.data.table import (
    Complaints,
    MissingColumnError,
    Table,
    open_text,
)

STANDARD_INPUT = "-"
TABLES = (".csv",)
LISTS = (".smi", ".txt")


@dataclass(frozen=True)
class Asked:
    """SMILES, where they stand, for people, and cells of the same row."""

    place: str
    smiles: str
    kept: tuple[str, ...] = ()


def given_smiles(smiles: Iterable[str]) -> list[Asked]:
    """Molecules of the command line."""
    return [Asked(f"row {row}", text) for row, text in enumerate(smiles)]


def read_smiles(
    file: str, column: str | None, usual_column: str, keep: Sequence[str] = ()
) -> list[Asked]:
    """Molecules of a file: a table with names in its first line, or a list of one a line, in which
    what follows behind a space is not read. Files may be packed with gzip.

    Args:
        file: .csv, .smi or .txt, with or without .gz behind it; `-` is a list in the standard
            input.
        column: of the table.
        usual_column: where nobody says which.
        keep: further columns of the table, whose cells are kept.
    """
    path = Path(file)
    ending = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    if file != STANDARD_INPUT and ending in TABLES:
        return list(_in_table(path, usual_column if column is None else column, keep))
    if file != STANDARD_INPUT and ending not in LISTS:
        endings = ", ".join((*TABLES, *LISTS))
        raise ValueError(f"FILE is {file!r}, expected one that ends in {endings} or in .gz, or -")
    for flag, given in (("--column", column), ("--keep", ",".join(keep) or None)):
        if given is not None:
            raise ValueError(f"{flag} is {given!r}, but {file} has no columns")
    if file == STANDARD_INPUT:
        return _in_lines(sys.stdin)
    try:
        with open_text(path) as lines:
            return _in_lines(lines)
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} cannot be read as text: {error}") from error


def _in_table(path: Path, column: str, keep: Sequence[str]) -> Iterator[Asked]:
    table, complaints = Table(path), Complaints(path)
    try:
        at = table.position(column)
    except MissingColumnError as error:
        raise ValueError(f"{error}; --column names that of the SMILES") from error
    kept = [table.position(name) for name in keep]
    for row in table.rows():
        if len(row.cells) != len(table.columns):
            complaints.add(row, f"expected {len(table.columns)} cells, found {len(row.cells)}")
            continue
        yield Asked(str(row), row.cells[at], tuple(row.cells[one] for one in kept))
    complaints.raise_any()


def _in_lines(lines: Iterable[str]) -> list[Asked]:
    return [
        Asked(f"row {row} (line {row + 1})", next(iter(line.split()), ""))
        for row, line in enumerate(lines)
    ]
