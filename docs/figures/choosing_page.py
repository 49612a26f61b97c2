"""The tables and the picture of choosing.md, made from records of benchmarks/gradients.py."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import choosing_tables as tables
import matplotlib
from gradients_record import GradientRecord, Part, Quality
from gradients_subjects import STATES
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Records = dict[str, GradientRecord]
"""By name, the CPU's first."""

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# Okabe and Ito's colours, distinct for colour-blind readers.
STYLES = {
    "Unrolled": ("#000000", "o"),
    "Truncated(5)": ("#56B4E9", "s"),
    "OneStep": ("#E69F00", "^"),
    "Implicit, CG": ("#D55E00", "D"),
    "Implicit, Neumann": ("#009E73", "v"),
    "Implicit, Cholesky": ("#CC79A7", "P"),
}


def refresh(page: str, records: Records) -> str:
    """The page with new content in every block between `<!-- generated: NAME -->` and
    `<!-- end -->`."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{SECTIONS[m[2]](records)}\n\n{m[3]}", page)


def newest(records: Records, part: Part) -> Records:
    """For each machine the newest record that has a part."""
    found: dict[str, str] = {}
    for name, record in records.items():
        machine = tables.machine(record)
        latest = records[found[machine]].date if machine in found else ""
        if getattr(record, part) and record.date > latest:
            found[machine] = name
    return {name: records[name] for name in found.values()}


def _of_first(records: Records) -> str:
    name, record = next(iter(newest(records, "quality").items()))
    return f"{_where(name, record)}\n\n{tables.quality(record)}"


def _training(records: Records) -> str:
    return tables.training(next(iter((newest(records, "quality") or records).values())))


def _each(part: Part, content: Callable[[GradientRecord], str]) -> Callable[[Records], str]:
    def section(records: Records) -> str:
        shown = newest(records, part).items()
        return "\n\n".join(f"{_where(name, record)}\n\n{content(record)}" for name, record in shown)

    return section


def _where(name: str, record: GradientRecord) -> str:
    return f"On {tables.machine(record)}. Record: `{name}.json`."


SECTIONS: dict[str, Callable[[Records], str]] = {
    "quality": _of_first,
    "training": _training,
    "cost": _each("cost", tables.cost),
    "solvers": _each("solvers", tables.solvers),
    "stopping": lambda records: tables.stopping(newest(records, "stopping").values()),
    "backward": lambda records: tables.backward(newest(records, "backward").values()),
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
