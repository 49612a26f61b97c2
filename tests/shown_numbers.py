"""Numbers that pages show, and the records that they are from."""

import json

from python_blocks import ROOT

# As rows of older records are called, on the machine that the pages speak of.
OLD_NAMES = {"captured": "equipool-captured", "torch": "equipool"}


def table_rows(text, *first):
    """Cells of the rows of tables that begin with these, as far as they are given."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if tuple(row[: len(first)]) == first]


def bench_rows(name, mode="training"):
    """Timed rows of a record of `equipool bench`, by number of sets, path and precision."""
    record = json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())
    return {
        (row["case"]["sets"], OLD_NAMES.get(row["path"], row["path"]), row["precision"]): row
        for row in record["rows"]
        if row["mode"] == mode and row["timing"]
    }
