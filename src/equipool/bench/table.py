"""A run as a table, for the terminal or for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.table import Table

from equipool.bench.cases import Mode
from equipool.bench.outcome import Row
from equipool.bench.record import Record

MEBIBYTE = 2**20


def tables(record: Record) -> list[Table]:
    """One for each case and mode, in the order of the rows."""
    rows = sorted(record.rows, key=lambda row: (_first_seen(record.rows, row), row.mode))
    grouped = groupby(rows, key=lambda row: (row.case, row.mode))
    return [_table(f"{case}, {mode}", list(group)) for (case, mode), group in grouped]


def notes(rows: Iterable[Row]) -> list[str]:
    """What was not timed, and why; cases with the same reason together."""
    reasons: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        if row.status != "timed":
            key = (row.path, row.precision, row.status, row.reason)
            reasons.setdefault(key, []).append(f"{row.case.sets:,} x {row.case.elements:,}")
    return [
        f"{path} {precision}: {status}: {reason} ({', '.join(dict.fromkeys(cases))})"
        for (path, precision, status, reason), cases in reasons.items()
    ]


def _first_seen(rows: Sequence[Row], row: Row) -> int:
    return next(i for i, other in enumerate(rows) if other.case == row.case)


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("path", no_wrap=True)
    for heading in ("ms", "quartiles", "MiB", "x pyg", "x floor", "error y", "error grad"):
        table.add_column(heading, justify="right", no_wrap=True)
    pyg = [row.timing.median for row in rows if row.path == "pyg" and row.timing is not None]
    for row in rows:
        table.add_row(f"{row.path} {row.precision}", *cells(row, min(pyg, default=None)))
    return table


def cells(row: Row, pyg: float | None) -> list[str]:
    """The numbers of a row; its status where there are none.

    Args:
        row: what was found.
        pyg: milliseconds that PyTorch Geometric's layer took, in the precision it is fastest in.
    """
    if row.timing is None:
        return ["-", row.status, "", "", "", "", ""]
    timing, agreement = row.timing, row.agreement
    errors = (
        ["", ""]
        if agreement is None
        else [
            f"{agreement.output:.0e}",
            f"{max(agreement.x_gradient, agreement.parameter_gradient):.0e}",
        ]
    )
    return [
        number(timing.median),
        f"{number(timing.lower_quartile)}-{number(timing.upper_quartile)}",
        "" if row.peak_bytes is None else number(row.peak_bytes / MEBIBYTE),
        "" if pyg is None else number(pyg / timing.median),
        "" if row.floor is None else f"{timing.median / least_ms(row):.1f}",
        *errors,
    ]


def least_ms(row: Row) -> float:
    """The row's floor: arithmetic or traffic, whichever takes longer."""
    assert row.floor is not None
    return max(row.floor.arithmetic_ms, row.floor.traffic_ms)


def number(value: float) -> str:
    """Three digits.

    Example:
        >>> number(0.01234), number(1.234), number(123.4), number(12345.6)
        ('0.0123', '1.23', '123', '12,346')
    """
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def markdown(record: Record, mode: Mode) -> str:
    """The timed rows of a mode as a Markdown table, for a page that shows a record.

    Columns are the terminal's, except that the case is a column, too.
    """
    lines = [
        "| sets x elements, T | path | ms, quartiles | MiB | x PyG | x floor | error y | error g |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, group in groupby((r for r in record.rows if r.mode == mode), key=lambda r: r.case):
        rows = [row for row in group if row.timing is not None]
        pyg = [row.timing.median for row in rows if row.path == "pyg" and row.timing is not None]
        for row in rows:
            ms, quartiles, *rest = cells(row, min(pyg, default=None))
            first = [f"{case.sets:,} x {case.elements:,}, {case.num_steps}"]
            path = f"{row.path}, {row.precision}"
            lines.append("| " + " | ".join([*first, path, f"{ms} ({quartiles})", *rest]) + " |")
    return "\n".join(lines)
