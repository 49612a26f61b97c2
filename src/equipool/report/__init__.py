"""Results of runs: tables, figures, and one HTML page with all of them."""

from equipool.report.artifacts import Table
from equipool.report.page import Section, write_page
from equipool.report.runs import RunResult, read_runs
from equipool.report.tables import best_groups, markdown, summaries, summarize

__all__ = [
    "RunResult", "Section", "Table", "best_groups", "markdown", "read_runs", "summaries",
    "summarize", "write_page",
]  # fmt: skip
