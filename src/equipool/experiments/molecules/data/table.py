"""CSV tables, read row by row."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

MAX_SHOWN = 10  # broken rows described in an error message
GZIP_MAGIC = b"\x1f\x8b"

SPECIAL_VALUES = dict.fromkeys(("", "nan", "na", "n/a", "null", "none"), math.nan)
SPECIAL_VALUES |= {"true": 1.0, "false": 0.0}
LARGEST = float(np.finfo(np.float32).max)
_COMMON = {"": math.nan, "0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}  # a shortcut for most cells

T = TypeVar("T")


class TableError(ValueError):
    """A table cannot be used. The message names the rows and the reasons."""


class MissingColumnError(TableError):
    """A table has no column of this name."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True)
class Row:
    """The cells of a row. `number` counts data rows from 0, `line` counts lines from 1."""

    number: int
    line: int
    cells: list[str]

    def __str__(self) -> str:
        return f"row {self.number} (line {self.line})"


class Table:
    """A CSV file, optionally gzipped, whose first line names the columns.

    It is read row by row and never held in memory as a whole. Blank lines are skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self._rows()) as rows:
            header = next(rows, None)
        if header is None:
            raise TableError(f"{path} is empty: expected a first line with the column names")
        self.columns = tuple(name.strip() for name in header.cells)

    def position(self, column: str) -> int:
        """The index of a column. `TableError` if it is missing (lists the columns) or ambiguous."""
        count = self.columns.count(column)
        if not count:
            one = len(self.columns) == 1 and any(mark in self.columns[0] for mark in ";\t|")
            hint = "; columns must be separated by commas" if one else ""
            found = f"its columns are {listed(self.columns)}{hint}"
            raise MissingColumnError(f"{self.path} has no column {column!r}: {found}", column)
        if count > 1:
            raise TableError(
                f"{self.path} has {count} columns named {column!r}: rename them in its first line "
                "or choose other columns"
            )
        return self.columns.index(column)

    def read(self, parse: Callable[[Row], T], advice: str = "") -> Iterator[T]:
        """What `parse` returns for each data row. Broken rows, which do not have a cell for each
        column or for which it raises `ValueError`, are left out, and raised together after the last
        row, as a `TableError` that ends with the advice."""
        shown, count = [], 0
        for row in islice(self._rows(), 1, None):
            try:
                if len(row.cells) != len(self.columns):
                    raise ValueError(f"expected {len(self.columns)} cells, found {len(row.cells)}")
                found = parse(row)
            except ValueError as error:
                count += 1
                if count <= MAX_SHOWN:
                    shown.append(f"  {row}: {error}")
            else:
                yield found
        if count:
            rows = "1 broken row" if count == 1 else f"{count:,} broken rows"
            rest = f"  and {count - len(shown):,} more" if count > len(shown) else ""
            lines = [f"{self.path} has {rows}:", *shown, rest, advice]
            raise TableError("\n".join(filter(None, lines)))

    def _rows(self) -> Generator[Row, None, None]:
        """The header as row -1, then the data rows."""
        reader = csv.reader(read_lines(self.path))
        number = -1
        try:
            for cells in reader:
                if cells:
                    yield Row(number, reader.line_num, cells)
                    number += 1
        except csv.Error as error:
            after = f"after line {reader.line_num}: {error}"
            raise TableError(f"{self.path} cannot be read {after}") from error


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file. Gzip is recognised by content, not by name."""
    try:
        with path.open("rb") as file:
            gzipped = file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            content = gzip.GzipFile(fileobj=file) if gzipped else file
            with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as text:
                yield from text
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is not UTF-8 text: save it as UTF-8 ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TableError(f"{path} cannot be read: {error}") from error


def parse_number(cell: str) -> float:
    """The number in a cell: NaN if it is missing, `ValueError` if it is not a number.

    Example:
        >>> parse_number("0.5"), parse_number("True"), parse_number(" NA ")
        (0.5, 1.0, nan)
    """
    if cell in _COMMON:
        return _COMMON[cell]
    text = cell.strip().lower()
    if text in SPECIAL_VALUES:
        return SPECIAL_VALUES[text]
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"expected a number, found {cell!r}") from None
    if not abs(number) <= LARGEST:
        raise ValueError(f"expected a finite float32 number, found {cell!r}")
    return number


def listed(names: Sequence[str], shown: int = 20) -> str:
    """Quoted names separated by commas; only the first `shown` of a long list."""
    rest = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + rest
