"""What came of runs: tables, pictures, and one page with all of it."""

from equipool.report.page import write_page
from equipool.report.runs import RunResult, read_runs
from equipool.report.summary import Summary, markdown, order_in_words, summaries, summarize

__all__ = [
    "RunResult",
    "Summary",
    "markdown",
    "order_in_words",
    "read_runs",
    "summaries",
    "summarize",
    "write_page",
]
