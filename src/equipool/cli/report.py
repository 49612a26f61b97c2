"""`equipool report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipool.cli import console


def report(
    runs: Annotated[list[Path], typer.Argument(
        help="directories of runs or sweeps, and copies of record.json", metavar="RUN")],
    out: Annotated[Path, typer.Option(help="page to write", metavar="PATH")] = Path("report.html"),
) -> None:  # fmt: skip
    """Write a page of tables and plots from runs."""
    with console.plain_errors():
        from equipool.extras import check_extras

        check_extras("the report", {"report": ("matplotlib", "jinja2", "pandas")})
        from equipool.report import read_runs, results
        from equipool.report.page import write_page

        found = read_runs(runs)
        table = results(found)
        console.print_table(list(table), table.to_numpy().tolist())
        write_page(found, out)
        console.report_line(f"The page is {out}")
