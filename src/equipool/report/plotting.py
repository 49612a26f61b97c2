"""What all figures of the report share: styles of lines, axes and legends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

# Okabe and Ito's colours, which colour-blind readers can distinguish; lines differ in dashes and
# markers as well.
COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255",
)  # fmt: skip
DASHES = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MOST_CURVES = len(COLORS)  # with a colour and a name; further ones are grey
WIDTH = 10.0  # inches
CHARACTER = 0.085  # inches, of a legend


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    color: str
    dashes: Any
    marker: str

    def line(self, points: int) -> dict[str, Any]:
        """Arguments of `Axes.plot` for a line of so many points, about six of them marked."""
        return {
            "color": self.color,
            "linestyle": self.dashes,
            "linewidth": 2.0 if points < 60 else 1.4,
            "marker": self.marker,
            "markersize": 5,
            "markevery": max(1, -(-points // 6)),
        }


GREY = Style("#b8b8b8", "-", "")


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label. Labels come in the order of importance: the first `MOST_CURVES` get
    a style of their own, the rest is grey."""
    unique = list(dict.fromkeys(labels))
    chosen = sorted(unique[:MOST_CURVES])
    own = {
        label: Style(COLORS[i], DASHES[i % len(DASHES)], MARKERS[i])
        for i, label in enumerate(chosen)
    }
    return {label: own.get(label, GREY) for label in unique}


@contextmanager
def panels(
    rows: int, columns: int, width: float, height: float, shared: bool = False
) -> Iterator[tuple[Any, BytesIO]]:
    """Axes to draw on, `[rows, columns]`, and the buffer that receives the PNG at the end; if
    `shared`, all have one y axis and each column one x axis. Does not use pyplot, so that no global
    state changes."""
    figure = Figure(figsize=(width, height), dpi=120, layout=ConstrainedLayoutEngine(h_pad=0.1))
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        rows, columns, squeeze=False, sharex="col" if shared else False, sharey=shared
    )
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=10)
        ax.grid(which="major", alpha=0.3)
    content = BytesIO()
    yield axes, content
    figure.savefig(content, format="png")


def add_legend(ax: Axes, drawn: Mapping[str, Style]) -> None:
    """One legend for the whole figure, below the axes, so that it never covers a curve."""
    entries = {label: style for label, style in drawn.items() if style is not GREY}
    more = len(drawn) - len(entries)
    if more:
        entries[f"{more} more (see the table)"] = GREY
    handles = [Line2D([], [], **style.line(1), label=label) for label, style in entries.items()]
    column = 0.7 + CHARACTER * max(map(len, entries))
    figure: Any = ax.get_figure()
    columns = max(1, int(figure.get_figwidth() / column))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, fontsize=10, frameon=False
    )


def label_axes(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(x, fontsize=10)
    ax.set_ylabel(y, fontsize=10)


def label_steps(ax: Axes, title: str, x: str = "training steps", y: str = "") -> None:
    """As `label_axes`, for an axis of training steps, of which there may be millions."""
    label_axes(ax, title, x, y)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def use_log_scale(axes: Sequence[Axes]) -> None:
    """A logarithmic y axis on all of these axes, if everything drawn on them is positive."""
    values = np.concatenate([line.get_ydata() for ax in axes for line in ax.lines] or [[]])
    if values.size and np.all((values > 0) | np.isnan(values)):
        for ax in axes:
            ax.set_yscale("log")
