"""A plot of a comparison."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipool.comparison.result import (
    MEBIBYTE,
    GradientComparison,
    GradientRow,
    error_text,
    percent,
    three_digits,
)

COLORS = ("#0072B2", "#009E73", "#D55E00")
SMALLEST_ERROR = 1e-16  # float64's rounding; a bar of length zero has no place on this axis


def draw(comparison: GradientComparison, file: Path) -> None:
    """Bars for error, time and memory. The same bytes for the same numbers."""
    rows = comparison.rows
    figure = Figure(figsize=(11, 1.4 + 0.35 * len(rows)), layout="constrained")
    by_error, by_time, by_memory = figure.subplots(1, 3, sharey=True)
    errors = [(row.parameters or row.x).relative_error for row in rows]
    drawn = [max(error, SMALLEST_ERROR) if math.isfinite(error) else math.nan for error in errors]
    _bars(by_error, rows, drawn, [error_text(error) for error in errors], COLORS[0])
    by_error.set_xscale("log")
    by_error.set_title("relative error of the gradient", loc="left", fontsize=10)
    times = [1000 * row.seconds.median for row in rows]
    _bars(by_time, rows, times, [three_digits(time) for time in times], COLORS[1])
    by_time.set_title("forward and backward, milliseconds", loc="left", fontsize=10)
    memory = [row.peak_bytes / MEBIBYTE for row in rows]
    _bars(by_memory, rows, memory, [three_digits(mebibytes) for mebibytes in memory], COLORS[2])
    by_memory.set_title("peak memory, MiB", loc="left", fontsize=10)
    by_error.invert_yaxis()
    figure.supxlabel(comparison.setting, fontsize=8, color="#666666")
    with matplotlib.rc_context({"svg.hashsalt": "equipool", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _bars(
    ax: Axes, rows: tuple[GradientRow, ...], values: list[float], labels: list[str], color: str
) -> None:
    bars = ax.barh([_name(row) for row in rows], values, color=color)
    ax.bar_label(bars, labels, fontsize=8, padding=2)
    for position, (value, label) in enumerate(zip(values, labels, strict=True)):
        if math.isnan(value):  # no bar, and nowhere for its label
            ax.text(0.02, position, label, fontsize=8, transform=ax.get_yaxis_transform())
    ax.margins(x=0.2)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _name(row: GradientRow) -> str:
    return f"{row.way}, {percent(row.fallback)} fell back" if row.fallback else row.way
