"""Results of runs: data frames, a table, and one HTML page."""

from equipool.report.runs import Runs, read_runs, results

__all__ = ["Runs", "read_runs", "results"]
