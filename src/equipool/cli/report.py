"""`equipool report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from equipool.cli import console
from equipool.extras import check_extras


@dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of `equipool report`.

    Args:
        out: page to write.
    """

    out: Path = Path("report.html")


def report(
    runs: Annotated[list[Path], typer.Argument(
        help="directories of runs or sweeps, and copies of record.json", metavar="RUN")],
    options: Options,
) -> None:  # fmt: skip
    """Write a page of tables and plots from runs."""
    check_extras("the report", {"report": ("matplotlib", "jinja2", "pandas")})
    from equipool.report import read_runs, results
    from equipool.report.page import write_page

    found = read_runs(runs)
    table = results(found)
    console.print_table(list(table), table.to_numpy().tolist())
    write_page(found, options.out)
    console.report_line(f"The page is {options.out}")
