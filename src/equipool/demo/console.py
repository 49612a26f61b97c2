"""What the terminal shows while the demonstration runs, and at its end."""

from __future__ import annotations

from dataclasses import astuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from equipool.demo.results import HEADINGS, Result, table
from equipool.demo.train import History

RECENT = 50  # steps, over which the error and the speed shown are averaged


class ProgressBars:
    """One bar for each network, with its speed, its error and the time left."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description:<30}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]:>7} steps/s"),
            TextColumn("error {task.fields[error]:>8}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}

    def report(self, name: str, done: float, history: History) -> None:
        """Hear of a step."""
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=1.0, speed="", error="")
        self.progress.update(
            self.tasks[name],
            completed=done,
            speed=f"{history.num_steps / max(history.total_seconds, 1e-9):.0f}",
            error=f"{_mean(history.errors[-RECENT:]):.1e}",
        )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def results_table(results: list[Result]) -> Table:
    """The results as a table for the terminal."""
    shown = Table(title="Median of 100 numbers")
    for position, heading in enumerate(astuple(HEADINGS)):
        shown.add_column(heading, justify="right" if position else "left")
    for row in table(results):
        shown.add_row(*astuple(row))
    return shown
