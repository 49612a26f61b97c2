"""`equipool report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipool.cli.errors import plain_errors
from equipool.cli.words import print_summary, say
from equipool.report import read_runs, summaries, write_page
from equipool.report.runs import unread_folders


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="directories of runs or of sweeps, and JSON files of records"),
    ],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
) -> None:
    """Make one page of tables and pictures of runs."""
    with plain_errors():
        found = read_runs(runs)
        left_out = [place for path in runs for place in unread_folders(path)]
        if left_out:
            say(f"Not read, as they are deeper: {', '.join(map(str, left_out))}")
        for summary in summaries(found):
            print_summary(summary)
        write_page(found, out)
        say(f"The page is {out}")
