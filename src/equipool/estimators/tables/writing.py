"""Tables as files."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

ENDINGS = (".csv", ".csv.gz", ".parquet")


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


def write_csv(table: pa.Table, stream: TextIO) -> None:
    """Write a table as CSV, with as few digits as identify each number."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.column_names)
    for batch in table.to_batches(65_536):
        columns = (map(str, column.to_numpy(zero_copy_only=False)) for column in batch.columns)
        writer.writerows(zip(*columns, strict=True))
