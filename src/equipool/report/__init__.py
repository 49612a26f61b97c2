"""Results of runs: data frames, a table, and one HTML page."""

from equipool.report.runs import Runs, read_runs
from equipool.report.tables import results

__all__ = ["Runs", "read_runs", "results"]
