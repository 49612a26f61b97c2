"""`equipool report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipool.cli import console
from equipool.extras import check_extras

if TYPE_CHECKING:
    from equipool.report import Runs


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
    from equipool.report.page import write_page

    write_page(print_results(runs), options.out)
    console.report_line(f"The page is {options.out}")


def print_results(paths: Sequence[Path]) -> Runs:
    """Read runs and print their table of results."""
    from equipool.report import read_runs, results

    runs = read_runs(paths)
    table = results(runs)
    console.print_table(list(table), table.to_numpy().tolist())
    return runs
