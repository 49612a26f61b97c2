"""Draw records of `equipool bench`.

    python benchmarks/plot.py benchmarks/records/*.json --out docs/figures

Records of other scripts are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import matplotlib
import typer
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipool.bench.cases import BOTH, Mode
from equipool.bench.command import Records, read_records
from equipool.bench.record import Record, Row

# Okabe and Ito's colours, distinct for colour-blind readers.
COLORS = {
    "pyg": "#D55E00",
    "reference": "#999999",
    "equipool": "#0072B2",
    "equipool-autograd": "#E69F00",
    "equipool-torch": "#56B4E9",
    "equipool-compiled": "#009E73",
    "equipool-captured": "#000000",
}
RIVAL = "#CC79A7"
MARKERS = {
    "sum": "v", "mean": "^", "max": "X", "attention": "<", "gmt": ">", "set-transformer": "s",
    "pna": "D", "sum-captured": "P",
}  # fmt: skip
LINES = {"float32": "-", "tf32": "--", "bf16": ":"}
AXES = {
    "sets": "sets in the batch",
    "elements": "elements in the set",
    "num_steps": "inner steps T",
    "in_channels": "width",
}

Quantity = Callable[[Row], float]

app = typer.Typer(add_completion=False)


@app.command()
def main(
    records: Records,
    out: Annotated[Path, typer.Option(help="output directory", metavar="PATH")] = Path("figures"),
) -> None:
    """Draw records as performance-*.svg."""
    for record in read_records(records):
        for drawn in draw_record(record, out):
            typer.echo(drawn)


def draw_record(record: Record, folder: Path) -> list[Path]:
    """Draw `performance-PRESET.svg`, and `performance-PRESET-inference.svg` if inference was timed.
    Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for mode in BOTH:
        rows = [row for row in record.rows if row.mode == mode and row.timing is not None]
        if rows:
            name = record.preset if mode == "training" else f"{record.preset}-{mode}"
            files.append(folder / f"performance-{name}.svg")
            _save(_figure(record, rows, mode), files[-1])
    return files


def milliseconds(row: Row) -> float:
    assert row.timing is not None
    return row.timing.median


def mebibytes(row: Row) -> float:
    return (row.peak_bytes or 0) / 2**20


def _figure(record: Record, rows: list[Row], mode: Mode) -> Figure:
    sweep = len({row.case for row in rows}) > 1 and record.axis in AXES
    figure = Figure(figsize=(10, 4.4 if sweep else 1.2 + 0.3 * len(rows)), layout="constrained")
    by_time, by_memory = figure.subplots(1, 2)
    step = "forward" if mode == "inference" else "training step"
    for ax, quantity, title in (
        (by_time, milliseconds, f"{step}, milliseconds"),
        (by_memory, mebibytes, f"{step}, peak memory in MiB"),
    ):
        _draw_sweep(ax, rows, record.axis, quantity) if sweep else _draw_bars(ax, rows, quantity)
        ax.set_title(title, loc="left", fontsize=11)
        ax.spines[["top", "right"]].set_visible(False)
    if sweep:
        handles, labels = by_time.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    machine = record.hardware.get("gpu", record.hardware["cpu"])
    figure.supxlabel(f"{machine}, {record.date[:10]}, {record.commit}", fontsize=8, color="#666666")
    return figure


def _draw_sweep(ax: Axes, rows: list[Row], axis: str, quantity: Quantity) -> None:
    series: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        series.setdefault((row.path, row.precision), []).append(row)
    for (path, precision), points in series.items():
        ax.plot(
            [getattr(row.case, axis) for row in points],
            [quantity(row) for row in points],
            LINES[precision],
            color=COLORS.get(path, RIVAL),
            marker=MARKERS.get(path, "o"),
            markersize=4,
            linewidth=1.5,
            label=f"{path} {precision}",
        )
    if axis == "elements":
        _draw_proportional(ax, rows, quantity)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(AXES[axis])
    positions = sorted({getattr(row.case, axis) for row in rows})
    ax.set_xticks(positions, [f"{position:,}" for position in positions], fontsize=8)
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    ax.grid(alpha=0.3)


def _draw_proportional(ax: Axes, rows: list[Row], quantity: Quantity) -> None:
    """A line proportional to the number of elements, through the layer's last point."""
    ours = [row for row in rows if row.path == "equipool"]
    if not ours:
        return
    last = max(ours, key=lambda row: row.case.elements)
    ends = [last.case.elements / 100, last.case.elements]
    ax.plot(
        ends, [quantity(last) * end / ends[-1] for end in ends], color="#666666", linewidth=4,
        alpha=0.25, label="proportional to elements",
    )  # fmt: skip


def _draw_bars(ax: Axes, rows: list[Row], quantity: Quantity) -> None:
    several = len({row.case.workload for row in rows}) > 1
    names = [f"{f'{row.case.workload}: ' * several}{row.path} {row.precision}" for row in rows]
    values = [quantity(row) for row in rows]
    bars = ax.barh(names, values, color=[COLORS.get(row.path, RIVAL) for row in rows])
    ax.bar_label(bars, [f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values],
                 fontsize=8, padding=2)  # fmt: skip
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.tick_params(labelsize=8)


def _save(figure: Figure, file: Path) -> None:
    """Write the same bytes for the same record."""
    with matplotlib.rc_context({"svg.hashsalt": "equipool", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    app()
