"""Records of `equipool bench gradients` as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipool.bench.gradients_record import GradientRecord, Quality
from equipool.bench.gradients_subjects import STATES

# Okabe and Ito's colours, which the colour-blind tell apart.
STYLES = {
    "Unrolled": ("#000000", "o"),
    "Truncated(5)": ("#56B4E9", "s"),
    "OneStep": ("#E69F00", "^"),
    "Implicit, CG": ("#D55E00", "D"),
    "Implicit, Neumann": ("#009E73", "v"),
    "Implicit, Cholesky": ("#CC79A7", "P"),
}


def draw_quality(record: GradientRecord, file: Path) -> None:
    """Relative error over the number of steps, a panel for each layer and output size. The same
    bytes for the same record."""
    sizes = list(dict.fromkeys(row.size for row in record.quality))
    figure = Figure(figsize=(2 + 3 * len(sizes), 7.5), layout="constrained")
    panels = figure.subplots(len(STATES), len(sizes), sharex=True, sharey=True, squeeze=False)
    for state, line in zip(STATES, panels, strict=True):
        for size, ax in zip(sizes, line, strict=True):
            rows = [row for row in record.quality if (row.state, row.size) == (state, size)]
            _draw_panel(ax, rows)
            ax.set_title(f"{state}, output size {size}", loc="left", fontsize=9)
    steps = sorted({row.num_steps for row in record.quality})
    panels[0][0].set_xticks(steps, [str(count) for count in steps])
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    figure.supylabel("relative error of the parameters' gradient", fontsize=9)
    figure.supxlabel("inner steps T; hollow: more than half of the sets fell back", fontsize=9)
    with matplotlib.rc_context({"svg.hashsalt": "equipool", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None})


def _draw_panel(ax: Axes, rows: Sequence[Quality]) -> None:
    for way, (color, marker) in STYLES.items():
        points = [row for row in rows if row.way == way]
        steps = [row.num_steps for row in points]
        errors = [math.nan if row.error is None else row.error for row in points]
        ax.plot(steps, errors, color=color, linewidth=1.2, label=way)
        for row, error in zip(points, errors, strict=True):
            hollow = row.fallback is not None and row.fallback > 0.5
            ax.plot(row.num_steps, error, marker, color=color, markersize=5,
                    markerfacecolor="white" if hollow else color)  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.tick_params(labelsize=8)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
