"""Tables with named columns: CSV, gzipped CSV, Parquet, and tables in memory.

Every cell is a number, a date, or text; errors name the file, the line, the bag and the column.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

GZIP_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
ENDINGS = (".csv", ".csv.gz", ".parquet")
SHOWN = 20  # names in a message
LONGEST_CELL = 2**31 - 1  # Python's own limit is 131,072 characters
ROW_LABELS = re.compile(r"__index_level_\d+__")  # those of a data frame, which are no column
VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
TEXT = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), *VIEWS)

# Cells without a value.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
WHOLE = re.compile(r"[+-]?\d+")
_TRUTH = {"true": 1.0, "True": 1.0, "TRUE": 1.0, "false": 0.0, "False": 0.0, "FALSE": 0.0}

Array = NDArray[Any]


class TableError(ValueError):
    """A table cannot be used. The message names the line, bag or column, and what to do."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a table, in memory.

    Args:
        name: of the table, in messages.
        data: the columns.
        csv: the file, if it has lines to name in messages.
        bag: the column that names the bag of each row, if messages should name it.
    """

    name: str
    data: pa.Table
    csv: Path | None = None
    bag: str | None = None

    def place(self, row: int | np.integer[Any]) -> str:
        """What names a row, counted from 0, in messages: by its line in the file if it has lines.

        Example:
            >>> Table("the table", pa.table({"patient": ["p1"]}), bag="patient").place(0)
            "the table, row 0 (bag 'p1')"
        """
        where = f"row {row}" if self.csv is None else f"line {_line_of(self.csv, int(row))}"
        bag = None if self.bag is None else self.data[self.bag][int(row)].as_py()
        return f"{self.name}, {where}" + ("" if bag is None else f" (bag {_as_text(bag)!r})")

    def is_text(self, name: str) -> bool:
        """Whether a column has text, which may still look like numbers, or decimals of any size."""
        kind = self.data[name].type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return kind in TEXT or pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind)

    def has_dates(self, name: str) -> bool:
        """Whether a column has dates, times or durations."""
        kind = self.data[name].type
        return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))

    def text(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """The cells of a column as text: for each its position in a list of values, -1 if missing.

        Example:
            >>> Table("the table", pa.table({"c": ["b", " a", "b", "NA", None]})).text("c")
            (array([ 0,  1,  0, -1, -1]), ['b', 'a'])
        """
        column = self.data[name]
        if not pa.types.is_dictionary(column.type):
            column = column.cast(VIEWS.get(column.type, column.type)).dictionary_encode()
        encoded = pa.concat_arrays(column.unify_dictionaries().chunks)
        found = [_as_text(value) for value in encoded.dictionary.to_pylist()]
        values = list(dict.fromkeys(value for value in found if value not in MISSING))
        position = {value: number for number, value in enumerate(values)}
        # One more, for cells that are null.
        table = np.array([*(position.get(value, -1) for value in found), -1], np.int64)
        indices = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        return table[indices], values

    def numbers(self, name: str, advice: str = "") -> NDArray[np.float64]:
        """The cells of a column as numbers, NaN where missing: 1 and 0 for truth values, seconds
        (since 1970) for dates and times. Raises a `TableError` that names the first other cell and
        ends with the advice.

        Example:
            >>> Table("the table", pa.table({"c": ["1.5", " -1e3", None]})).numbers("c")
            array([    1.5, -1000. ,     nan])
        """
        column = self.data[name]
        if self.is_text(name):
            codes, values = self.text(name)
            numbers = np.array([*map(number_from, values), np.nan])[codes]
            beyond = np.array([*map(is_beyond_floats, values), False])[codes]
            wrong = np.flatnonzero(np.isnan(numbers) & (codes != -1) | beyond)
            if wrong.size:
                row, limit = wrong[0], " up to 2^53" if beyond[wrong[0]] else ""
                found = f"column {name!r} has {values[codes[row]]!r}"
                raise TableError(f"{self.place(row)}: {found}, expected a number{limit}{advice}")
            return numbers
        if self.has_dates(name):
            return _seconds(column)
        try:
            return np.asarray(pc.cast(column, pa.float64()).to_numpy())
        except pa.ArrowInvalid:
            row = np.nanargmax(np.abs(pc.cast(column, pa.float64(), safe=False).to_numpy()))
            raise TableError(
                f"{self.place(int(row))}: column {name!r} has {column[int(row)].as_py()}, and "
                f"whole numbers beyond 2^53 cannot be told apart as float64{advice}"
            ) from None
        except pa.ArrowNotImplementedError:
            raise TableError(
                f"column {name!r} of {self.name} is of type {column.type}, expected numbers{advice}"
            ) from None


@dataclass(frozen=True)
class TableSource:
    """A table whose columns can be read.

    Args:
        name: in messages.
        columns: names of all columns.
        load: reads some columns, of which some are text whatever they look like.
        csv: the file, if it is text.
    """

    name: str
    columns: tuple[str, ...]
    load: Callable[[list[str], Sequence[str]], pa.Table]
    csv: Path | None = None

    def check_columns(self, names: Iterable[str]) -> None:
        """Refuse names that the table does not have, or has twice."""
        for name in names:
            count = self.columns.count(name)
            if not count:
                single = len(self.columns) == 1 and any(mark in self.columns[0] for mark in ";\t|")
                hint = "; columns must be separated by commas" if single else ""
                found = f"its columns are {listed(self.columns)}{hint}"
                raise TableError(f"{self.name} has no column {name!r}: {found}")
            if count > 1:
                raise TableError(
                    f"{self.name} has {count} columns named {name!r}: rename them or leave them out"
                )

    def read(self, names: Sequence[str], text: Sequence[str] = (), bag: str | None = None) -> Table:
        """Read some columns.

        Args:
            names: of the columns.
            text: those that are text even if they look like numbers, such as ids.
            bag: the column that names the bag of each row, for messages.
        """
        self.check_columns(names)
        with table_errors(self.name):
            data = self.load(list(dict.fromkeys(names)), text)
        if not data.num_rows:
            raise TableError(f"{self.name} is empty: expected a row after the column names")
        return Table(self.name, data, self.csv, bag)


def open_table(table: Any) -> TableSource:
    """Open a table.

    Args:
        table: the path of a CSV file with column names in its first line, of a gzipped one or of a
            Parquet file (recognised by content, not by name); or a table in memory: of pyarrow, a
            dictionary of columns, or a data frame of pandas or polars.
    """
    if not isinstance(table, str | Path):
        return _in_memory(table)
    path = Path(table)
    with table_errors(str(path)):
        with path.open("rb") as file:
            start = file.read(4)
        return _parquet(path) if start == PARQUET_MAGIC else _csv(path)


@contextmanager
def table_errors(name: str) -> Iterator[None]:
    """Turn errors of pyarrow and of the file system into a `TableError` that names the table."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, csv.Error, zlib.error) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise TableError(f"{name} cannot be read: {reason}") from error


def _csv(path: Path) -> TableSource:
    from pyarrow import csv as reader

    def load(names: list[str], text: Sequence[str]) -> pa.Table:
        options = reader.ConvertOptions(
            include_columns=names, strings_can_be_null=True, null_values=list(MISSING),
            column_types={name: pa.dictionary(pa.int32(), pa.string()) for name in text},
        )  # fmt: skip
        try:
            with _opened(path) as file:
                data = reader.read_csv(
                    file, reader.ReadOptions(use_threads=False),
                    reader.ParseOptions(newlines_in_values=True), options,
                )  # fmt: skip
        except pa.ArrowInvalid:
            _check_rows(path, columns)
            raise
        with _opened(path) as file:
            num_lines = sum(1 for _ in file)
        # Text that is not UTF-8, or cells with several lines: their quotes may not pair.
        if num_lines > len(data) + 1 or any(map(pa.types.is_binary, data.schema.types)):
            _check_rows(path, columns)
        return data

    columns = tuple(next(_rows(path), (1, []))[1])
    if not columns:
        raise TableError(f"{path} is empty: expected a first line with the column names")
    return TableSource(str(path), columns, load, path)


def _parquet(path: Path) -> TableSource:
    from pyarrow import parquet

    def load(names: list[str], text: Sequence[str]) -> pa.Table:
        with parquet.ParquetFile(path) as file:
            return file.read(names, use_threads=False)

    with parquet.ParquetFile(path) as file:
        names = tuple(one for one in file.schema_arrow.names if not ROW_LABELS.fullmatch(one))
        return TableSource(str(path), names, load)


def _in_memory(table: Any) -> TableSource:
    try:
        held = pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise TableError(
            f"the table is a {type(table).__name__}, expected a path, a pyarrow table or a data "
            f"frame of pandas or polars ({error})"
        ) from error
    names = tuple(name for name in held.column_names if not ROW_LABELS.fullmatch(name))
    return TableSource("the table", names, lambda some, text: held.select(some))


def _opened(path: Path) -> Any:
    with path.open("rb") as file:
        gzipped = file.read(2) == GZIP_MAGIC
    return gzip.open(path) if gzipped else path.open("rb")


def _rows(path: Path, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
    """The cells of the header and of each row of a CSV file that is not blank, with the line where
    they begin, counted from 1. If strict, quotes must pair."""
    csv.field_size_limit(LONGEST_CELL)
    with _opened(path) as file:
        lines = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
        reader, line = csv.reader(lines, strict=strict), 1
        try:
            for cells in reader:
                if cells:
                    _check_text(path, line, cells)
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            raise TableError(f"{path}, line {line}: quotes do not pair ({error})") from None


def _check_text(path: Path, line: int, cells: list[str]) -> None:
    for number, cell in enumerate(cells, 1):
        if not cell.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in cell):
            shown = cell.encode("utf-8", "surrogateescape").decode("latin-1")
            raise TableError(
                f"{path}, line {line}: column {number} is not UTF-8 text, but {shown!r} in "
                "Latin-1: save the file as UTF-8"
            )


def _check_rows(path: Path, columns: Sequence[str]) -> None:
    """Name the first row of a CSV file that does not have a cell for each column, or whose quotes
    do not pair: they would hide further rows in a cell."""
    for line, cells in _rows(path, strict=True):
        if len(cells) != len(columns):
            raise TableError(
                f"{path}, line {line}: found {len(cells)} cells, expected {len(columns)}, one for "
                "each column"
            )


def _line_of(path: Path, row: int) -> int:
    """The line of a CSV file where a row begins."""
    return next(islice(_rows(path), row + 1, None))[0]  # the header comes first


def _as_text(value: Any) -> str:
    return (value.decode("utf-8", "backslashreplace") if isinstance(value, bytes)
            else str(value)).strip()  # fmt: skip


def _seconds(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Dates, times and durations as seconds, since 1970 or midnight."""
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("ns")).cast(pa.int64()).cast(pa.duration("ns"))
    values = column.to_numpy()
    since = values - np.datetime64(0, "s") if values.dtype.kind == "M" else values
    return np.asarray(since / np.timedelta64(1, "s"))


def number_from(text: str) -> float:
    """The number that a text is, 0 or 1 for a truth value; NaN for anything else.

    Example:
        >>> number_from("-1e3"), number_from("True"), number_from("1_000"), number_from("red")
        (-1000.0, 1.0, nan, nan)
    """
    if text in _TRUTH:
        return _TRUTH[text]
    try:
        return float(text) if "_" not in text else np.nan
    except ValueError:
        return np.nan


def is_beyond_floats(text: str) -> bool:
    """Whether a text is a whole number that float64 may not hold."""
    return WHOLE.fullmatch(text) is not None and abs(int(text)) > 2**53


def listed(names: Sequence[str]) -> str:
    """Quoted names separated by commas; only the first of a long list."""
    rest = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name) for name in names[:SHOWN]) + rest


def check_ending(path: str | Path, name: str = "path") -> None:
    """Refuse a path whose ending names no format."""
    if not str(path).endswith(ENDINGS):
        expected = f"the ending {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        raise ValueError(f"{name} is {str(path)!r}, expected {expected}")


def write_file(table: pa.Table, path: str | Path) -> None:
    """Write a table to a file, whose ending chooses the format: `.csv`, `.csv.gz` or `.parquet`."""
    check_ending(path)
    name = str(path)
    if name.endswith(".parquet"):
        from pyarrow import parquet

        parquet.write_table(table, name)
        return
    opened: Any = gzip.open if name.endswith(".gz") else open
    with opened(name, "wt", encoding="utf-8", newline="") as stream:
        write_csv(table, stream)


def write_csv(table: pa.Table, stream: TextIO, digits: int | None = None) -> None:
    """Write a table as CSV, with so many significant digits, or as few as identify each number.
    Missing values become empty cells."""

    def cell(value: Any) -> str:
        if value is None or value != value:
            return ""
        is_float = isinstance(value, float | np.floating)
        return f"{value:.{digits}g}" if digits and is_float else str(value)

    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.column_names)
    for batch in table.to_batches(65_536):
        columns = (map(cell, column.to_numpy(zero_copy_only=False)) for column in batch.columns)
        writer.writerows(zip(*columns, strict=True))
