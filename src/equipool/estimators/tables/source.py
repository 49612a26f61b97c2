"""Long tables, read a batch of rows at a time: CSV, gzipped CSV, Parquet, and tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROWS = 65_536  # per batch
GZIP_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
SHOWN = 20  # names in a message

# Cells without a value.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
_MISSING = frozenset(MISSING)
_TRUTH = {"true": 1.0, "True": 1.0, "TRUE": 1.0, "false": 0.0, "False": 0.0, "FALSE": 0.0}

Reader = Callable[[list[str]], Iterable[pa.RecordBatch]]


class TableError(ValueError):
    """A table cannot be used. The message names the row, bag or column, and what to do."""


@dataclass(frozen=True)
class TableSource:
    """A table that can be read several times, a batch of rows at a time.

    Args:
        name: in messages.
        columns: names of all columns.
        read: gives the batches of some columns, in any size.
    """

    name: str
    columns: tuple[str, ...]
    read: Reader

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

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """The number of the first row of each batch, and the batch's columns. Every batch except
        the last has `ROWS` rows, so that sums are the same for every kind of file."""
        first = 0
        with table_errors(self.name):
            for batch in _in_equal_parts(self.read(list(names))):
                columns = {name: _one_array(batch.column(name)) for name in names}
                yield first, columns
                first += batch.num_rows
        if not first:
            raise TableError(f"{self.name} is empty: expected a row for each element")


def open_table(table: Any) -> TableSource:
    """Open a table.

    Args:
        table: the path of a CSV file with column names in its first line, of a gzipped one or of a
            Parquet file (recognised by content, not by name); or a table in memory: of pyarrow, or
            a data frame of pandas or polars.
    """
    if not isinstance(table, str | Path):
        return _in_memory(table)
    path = Path(table)
    with table_errors(str(path)):
        with path.open("rb") as file:
            start = file.read(4)
        return _parquet(path) if start == PARQUET_MAGIC else _csv(path, start[:2] == GZIP_MAGIC)


@contextmanager
def table_errors(name: str) -> Iterator[None]:
    """Turn errors of pyarrow and of the file system into a `TableError` that names the table."""
    try:
        yield
    except TableError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise TableError(f"{name} cannot be read: {reason}") from error


def _csv(path: Path, gzipped: bool) -> TableSource:
    from pyarrow import csv

    def read(names: list[str] | None) -> Any:
        stream = pa.input_stream(str(path), compression="gzip" if gzipped else None)
        # Every cell is read as text: a type that is guessed from the first rows may not fit later.
        types = None if names is None else dict.fromkeys(names, pa.string())
        convert = csv.ConvertOptions(
            include_columns=names, column_types=types, strings_can_be_null=True,
            null_values=list(MISSING),
        )  # fmt: skip
        parse = csv.ParseOptions(newlines_in_values=True)
        return csv.open_csv(
            stream, csv.ReadOptions(use_threads=False), parse_options=parse, convert_options=convert
        )

    try:
        with read(None) as reader:
            columns = tuple(reader.schema.names)
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise
        expected = "expected a first line with the column names"
        raise TableError(f"{path} is empty: {expected}") from error
    return TableSource(str(path), columns, read)


def _parquet(path: Path) -> TableSource:
    from pyarrow import parquet

    def read(names: list[str]) -> Iterator[pa.RecordBatch]:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS, columns=names, use_threads=False)

    with parquet.ParquetFile(path) as file:
        return TableSource(str(path), tuple(file.schema_arrow.names), read)


def _in_memory(table: Any) -> TableSource:
    try:
        held = pa.table(table)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the table is a {type(table).__name__}, expected a path, a pyarrow table or a data "
            "frame of pandas or polars"
        ) from error
    names = tuple(held.column_names)
    return TableSource("the table", names, lambda some: held.select(some).to_batches(ROWS))


def _in_equal_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of `ROWS` rows; the last may be shorter."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= ROWS:
            whole = pa.Table.from_batches(held)
            full = count - count % ROWS
            for start in range(0, full, ROWS):
                yield whole.slice(start, ROWS)
            held, count = whole.slice(full).to_batches(), count - full
    if count:
        yield pa.Table.from_batches(held)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # of dictionaries that differ
        combined = combined.unify_dictionaries().chunk(0)
    return combined


def as_text(column: pa.Array) -> tuple[np.ndarray, list[str]]:
    """The cells of a column as text: for each its position in a list of values, -1 if missing.

    Example:
        >>> as_text(pa.array(["b", " a", "b", "NA", None]))
        (array([ 0,  1,  0, -1, -1]), ['b', 'a'])
    """
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    found = [str(value).strip() for value in encoded.dictionary.to_pylist()]
    values = list(dict.fromkeys(value for value in found if value not in _MISSING))
    position = {value: number for number, value in enumerate(values)}
    # One more, for cells that are null.
    table = np.array([*(position.get(value, -1) for value in found), -1])
    indices = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return table[indices], values


def as_numbers(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The cells of a column as float64, NaN if missing or not a number, and which are missing.

    Example:
        >>> as_numbers(pa.array(["1.5", "x", None]))
        (array([1.5, nan, nan]), array([False, False,  True]))
    """
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not (pa.types.is_dictionary(column.type) or text) or _all_numbers(column):
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
        return values, np.isnan(values)
    codes, names = as_text(column)
    return np.array([*map(number_from, names), np.nan])[codes], codes == -1


def is_readable(kind: pa.DataType) -> bool:
    """Whether cells of this type are numbers or text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean,
        pa.types.is_string, pa.types.is_large_string, pa.types.is_null,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _all_numbers(column: pa.Array) -> bool:
    try:
        values = pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        return False
    return not pc.any(pc.is_nan(values)).as_py()  # text such as NAN is not a number


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


def listed(names: Sequence[str]) -> str:
    """Quoted names separated by commas; only the first of a long list."""
    rest = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name) for name in names[:SHOWN]) + rest
