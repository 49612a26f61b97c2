"""What the commands print."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import typer
from rich.console import Console
from rich.table import Table

from equipool.environment import leads
from equipool.report import Summary
from equipool.training import Record


def make_console() -> Console:
    """Wide enough for the tables where nobody says how wide it is."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def say(text: str) -> None:
    """Print a line, once."""
    if leads():
        typer.echo(text)


def command_line(words: Sequence[str], options: Mapping[str, object]) -> str:
    """A command that can be copied into a shell; options that are None or False are left out.

    Example:
        >>> command_line(["train", "median"], {"--out": "my runs", "--resume": True})
        "equipool train median --out 'my runs' --resume"
    """
    parts = ["equipool", *words]
    for option, value in options.items():
        if value is True:
            parts.append(option)
        elif value is not None and value is not False:
            parts += [option, str(value)]
    return shlex.join(parts)


def print_record(record: Record) -> None:
    """The metrics of a run, of its last evaluation and of the best."""
    if not leads():
        return
    table = Table(
        "metric",
        f"at the end, step {record.steps:,}",
        f"best, step {record.best['step']:,}" if record.best else "best",
    )
    best = record.best["metrics"] if record.best else {}
    for name, value in record.metrics.items():
        table.add_row(name, _number(value), _number(best.get(name)))
    make_console().print(table)
    typer.echo(
        f"{record.training_seconds:,.1f} s of training, {record.seconds:,.1f} s in all; "
        f"{record.num_parameters:,} parameters; {record.skipped} skipped steps, "
        f"{record.spikes} spikes"
    )


def print_summary(summary: Summary) -> None:
    """The table of several runs."""
    if not leads():
        return
    console = make_console()
    columns = zip(summary.headings, *summary.rows, strict=True)
    widths = [_width(heading, cells, whole=i > 0) for i, (heading, *cells) in enumerate(columns)]
    for number, fitting in enumerate(_fitting(widths, console.width)):
        table = Table(title=None if number else summary.title)
        for column in fitting:
            table.add_column(summary.headings[column], min_width=widths[column], overflow="fold")
        for row in summary.rows:
            table.add_row(*(row[column] for column in fitting))
        console.print(table)


def _width(heading: str, cells: Sequence[str], whole: bool) -> int:
    """That a column needs: no word is to be broken, and where it is `whole`, no cell."""
    pieces = cells if whole else " ".join(cells).split()
    return max(map(len, (*heading.split(), *pieces)))


def _fitting(widths: Sequence[int], available: int) -> list[list[int]]:
    """Columns in tables that are no wider than is available, each with the first column.

    Example:
        >>> _fitting([4, 4, 4, 4], 24), _fitting([4, 4, 4, 4], 99)
        ([[0, 1, 2], [0, 3]], [[0, 1, 2, 3]])
    """
    frame = 3  # of a column, and one more
    tables = [[0]]
    for column in range(1, len(widths)):
        used = 1 + sum(widths[c] + frame for c in (*tables[-1], column))
        if used > available and len(tables[-1]) > 1:
            tables.append([0])
        tables[-1].append(column)
    return tables


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"
