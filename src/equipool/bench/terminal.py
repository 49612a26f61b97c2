"""What the terminal shows: a progress bar, and a record as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from equipool.bench.cases import BOTH
from equipool.bench.record import Record, Row
from equipool.comparison.result import MEBIBYTE, three_digits

Advance = Callable[..., None]
"""`advance("next description")` changes the text, `advance(steps=1)` moves the bar."""


def make_console() -> Console:
    """A console wide enough for the tables if its width is unknown."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


@contextmanager
def progress_bar(console: Console, total: int) -> Iterator[Advance]:
    """A bar that disappears at the end of the block."""
    columns = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def advance(description: str | None = None, *, steps: int = 0) -> None:
            progress.update(task, description=description, advance=steps)

        yield advance


def show(record: Record, console: Console) -> None:
    """Print a record: the machine, its rates, the tables, and what was not timed."""
    machine = record.hardware.get("gpu", record.hardware["cpu"])
    console.print(f"{machine}, torch {record.versions['torch']}, commit {record.commit}")
    for rates in record.rates:
        console.print(
            f"{rates.precision}: {rates.square_tflops:.3g} TFLOP/s in large products, "
            f"{rates.shaped_tflops:.3g} in [N, 600] @ [600, 332]; "
            f"copies at {rates.copy_gb_per_s:,.0f} GB/s"
        )
    for table in tables(record):
        console.print(table)
    for note in notes(record.rows):
        console.print(f"not timed: {note}", markup=False, highlight=False)


def tables(record: Record) -> list[Table]:
    """One table for each case and mode, in the order of the rows."""
    cases = list(dict.fromkeys(row.case for row in record.rows))
    rows = sorted(record.rows, key=lambda row: (cases.index(row.case), BOTH.index(row.mode)))
    grouped = groupby(rows, key=lambda row: (row.case, row.mode))
    return [_table(f"{case}, {mode}", list(group)) for (case, mode), group in grouped]


def notes(rows: Iterable[Row]) -> list[str]:
    """What was not timed, and why; cases with the same reason are listed together."""
    reasons: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        if row.status != "timed":
            key = (row.path, row.precision, row.status, row.reason)
            reasons.setdefault(key, []).append(f"{row.case.sets:,} x {row.case.elements:,}")
    return [
        f"{path} {precision}: {status}: {reason} ({', '.join(dict.fromkeys(cases))})"
        for (path, precision, status, reason), cases in reasons.items()
    ]


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
    """The numbers of a row, or its status. `pyg`: milliseconds of PyTorch Geometric's layer in its
    fastest precision."""
    if row.timing is None:
        return ["-", row.status, "", "", "", "", ""]
    timing, agreement = row.timing, row.agreement
    errors = ["", ""]
    if agreement is not None:
        gradient = max(agreement.x_gradient, agreement.parameter_gradient)
        errors = [f"{agreement.output:.0e}", f"{gradient:.0e}"]
    return [
        three_digits(timing.median),
        f"{three_digits(timing.lower_quartile)}-{three_digits(timing.upper_quartile)}",
        "" if row.peak_bytes is None else three_digits(row.peak_bytes / MEBIBYTE),
        "" if pyg is None else three_digits(pyg / timing.median),
        "" if row.floor is None else f"{timing.median / row.floor.least_ms:.1f}",
        *errors,
    ]
