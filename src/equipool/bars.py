"""Columns of a progress bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import ProgressColumn


def columns() -> tuple[ProgressColumn, ...]:
    """Name, bar, count, elapsed and remaining time. Needs rich."""
    from rich import progress

    return (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
