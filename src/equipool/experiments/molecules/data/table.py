"""Tables in CSV files."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

SHOWN = 10  # broken rows that are described
PACKED = b"\x1f\x8b"  # what a file of gzip begins with


class TableError(ValueError):
    """A table cannot be used; the message says in which rows and why."""


class MissingColumnError(TableError):
    """A table has no column of this name."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True)
class Row:
    """Cells of a row; `number` counts rows of data from 0, `line` lines of the file from 1."""

    number: int
    line: int
    cells: list[str]

    def __str__(self) -> str:
        return f"row {self.number} (line {self.line})"


class Table:
    """A CSV file, packed with gzip or not, whose first line names the columns. Read row by row,
    never as a whole; blank lines do not count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._reading() as lines:
            names = next(lines, None)
        if names is None:
            raise TableError(f"{path} is empty: expected a line with the columns' names")
        self.columns = tuple(name.strip() for name in names.cells)

    def position(self, column: str) -> int:
        """Where a column is; `TableError` lists the known ones where it is not, and says so where
        there are several of the name."""
        number = self.columns.count(column)
        if not number:
            raise MissingColumnError(
                f"{self.path} has no column {column!r}: its columns are {listed(self.columns)}, as "
                f"its first line says{self._separated()}",
                column,
            )
        if number > 1:
            raise TableError(
                f"{self.path} has {number} columns of the same name {column!r}: rename them in its "
                "first line, or choose other columns"
            )
        return self.columns.index(column)

    def _separated(self) -> str:
        """A hint where the cells do not seem to be separated by commas."""
        apart = len(self.columns) == 1 and any(mark in self.columns[0] for mark in ";\t|")
        return "; cells are to be separated by commas" if apart else ""

    def rows(self) -> Iterator[Row]:
        """The rows of data, whatever the number of their cells."""
        with self._reading() as lines:
            yield from islice(lines, 1, None)

    @contextmanager
    def _reading(self) -> Iterator[Iterator[Row]]:
        with open_text(self.path) as file:
            yield self._read(file)

    def _read(self, file: TextIO) -> Iterator[Row]:
        reader = csv.reader(file)
        number = -1
        try:
            with naming(self.path):
                for cells in reader:
                    if cells:
                        yield Row(number, reader.line_num, cells)
                        number += 1
        except csv.Error as error:
            raise TableError(
                f"{self.path} cannot be read after line {reader.line_num}: {error}"
            ) from error


class Complaints:
    """What is wrong with a table, row by row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[str] = []
        self._number = 0

    def add(self, row: Row, reason: str) -> None:
        self._number += 1
        if len(self._found) < SHOWN:
            self._found.append(f"  {row}: {reason}")

    def raise_any(self, advice: str = "") -> None:
        """Raise `TableError` where there was one, with a last line of advice."""
        if self._number:
            more = self._number - len(self._found)
            rest = [f"  and {more:,} more"] if more else []
            number = "1 broken row" if self._number == 1 else f"{self._number:,} broken rows"
            last = [advice] if advice else []
            told = [f"{self._path} has {number}:", *self._found, *rest, *last]
            raise TableError("\n".join(told))


def open_text(path: Path) -> TextIO:
    """A text file, packed with gzip or not, whatever its name."""
    with path.open("rb") as file:
        packed = file.read(len(PACKED)) == PACKED
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Where the file turns out to be broken in the block, `TableError` names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is not UTF-8 text: save it as UTF-8 ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TableError(f"{path} cannot be read: {error}") from error


def listed(names: Sequence[str], shown: int = 20) -> str:
    """Names with commas between them, the first ones where there are many."""
    rest = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + rest
