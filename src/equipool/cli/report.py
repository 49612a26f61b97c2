"""`equipool report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipool.cli import console
from equipool.cli.groups import single_command


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="directories of runs or sweeps, and JSON files of records", metavar="RUN"
        ),
    ],
    out: Annotated[Path, typer.Option(help="page to write", metavar="PATH")] = Path("report.html"),
) -> None:
    """Write a page of tables and plots from runs."""
    with console.plain_errors():
        from equipool.report import read_runs, summaries, write_page
        from equipool.report.runs import unread_folders

        found = read_runs(runs, lambda text: typer.echo(f"Warning: {text}", err=True))
        skipped = [place for path in runs for place in unread_folders(path)]
        if skipped:
            console.report_line(f"Skipped deeper directories: {', '.join(map(str, skipped))}")
        for summary in summaries(found):
            console.print_summary(summary)
        write_page(found, out)
        console.report_line(f"The page is {out}")


app = single_command(report)
