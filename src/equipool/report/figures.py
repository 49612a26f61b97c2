"""Figures of the report: what happened during training, and what all figures share."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from equipool.report.groups import CHANGED, METHOD, SIZE, CurvePoint, Group, mean_curve, sort_key
from equipool.report.runs import LOSS
from equipool.training import AtSteps

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
STEPS = "training steps"
MOST_FACETS = 6
MOST_POINTS = 150  # of a curve, of which a long log has many more

# Statistics of the inner loop: heading, and whether on a logarithmic axis.
INNER = {
    "residual": ("final gradient, max-norm", True),
    "aux_loss": ("auxiliary loss", True),
    "learning_rate": ("inner step size", False),
    "momentum": ("inner momentum", False),
    "regularizer_weight": ("weight of the regulariser", False),
    "converged": ("share of converged sets", False),
}


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    color: str
    dashes: Any
    marker: str

    def line(self, points: int) -> dict[str, Any]:
        """Arguments of `Axes.plot` for a line of so many points, about six of them marked."""
        return {
            "color": self.color, "linestyle": self.dashes, "linewidth": 2.0 if points < 60 else 1.4,
            "marker": self.marker, "markersize": 5, "markevery": max(1, -(-points // 6)),
        }  # fmt: skip


STYLES = [Style(*look) for look in zip(COLORS, 2 * DASHES, MARKERS, strict=True)]
GREY = Style("#b8b8b8", "-", "")


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label. Labels come in the order of importance: the first `MOST_CURVES` get
    a style of their own, the rest is grey."""
    unique = list(dict.fromkeys(labels))
    own = dict(zip(sorted(unique[:MOST_CURVES]), STYLES, strict=False))
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
    sharing: Any = {"sharex": "col", "sharey": True} if shared else {}
    axes: Any = figure.subplots(rows, columns, squeeze=False, **sharing)
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
    figure: Any = ax.get_figure()
    columns = max(1, int(figure.get_figwidth() / (0.7 + CHARACTER * max(map(len, entries)))))
    place = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles=handles, fontsize=10, frameon=False, **place)


def label_axes(ax: Axes, title: str, x: str = "", y: str = "") -> None:
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(x, fontsize=10)
    ax.set_ylabel(y, fontsize=10)
    if x == STEPS:  # of which there may be millions
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def use_log_scale(axes: Sequence[Axes]) -> None:
    """A logarithmic y axis on all of these axes, if everything drawn on them is positive."""
    values = np.concatenate([line.get_ydata() for ax in axes for line in ax.lines] or [[]])
    if values.size and np.all((values > 0) | np.isnan(values)):
        for ax in axes:
            ax.set_yscale("log")


def facets(groups: Sequence[Group]) -> dict[str, dict[str, Group]]:
    """Split groups into rows of panels, so that within a row few settings differ: the groups by
    title of the row and label in the row.

    Methods are compared within a row, all other settings that vary make rows. Settings with many
    values go into the labels instead, while there are more than `MOST_FACETS` rows or most rows
    have one group only."""
    names = groups[0].settings
    counts = {name: len({str(group.settings[name]) for group in groups}) for name in names}
    varying = [name for name in names if counts[name] > 1]
    within = max(varying, key=lambda name: (name == METHOD, counts[name]), default="")
    between = [name for name in varying if name not in (within, CHANGED)]
    between.sort(key=lambda name: (name != SIZE, counts[name]))
    rows = _split(groups, between)
    while between and (len(rows) > MOST_FACETS or 2 * len(rows) > len(groups)):
        between.pop()
        rows = _split(groups, between)
    named = [name for name in varying if name not in between]

    def label(group: Group) -> str:
        return group.label(named) or ("usual settings" if named else group.method)

    return {row[0].label(between): {label(group): group for group in row} for row in rows}


def _split(groups: Sequence[Group], between: Sequence[str]) -> list[list[Group]]:
    """Lists of groups with the same values of these settings, ordered by the values."""
    ordered = sorted(groups, key=lambda group: [sort_key(group.settings[n]) for n in between])
    return [list(row) for _, row in groupby(ordered, key=lambda group: group.label(between))]


def draw_curves(groups: Sequence[Group], metric: str | None = None) -> bytes:
    """A metric of the evaluations, by default the monitored one, or `LOSS`, against steps and
    against training seconds: means over the runs, and the range between the smallest and the
    largest."""
    monitor, rows = groups[0].runs[0].kind.monitor, facets(groups)
    name = metric or monitor
    ranked = [(rank, label) for row in rows.values() for rank, label in enumerate(row)]
    drawn = styles([label for _, label in sorted(ranked, key=lambda pair: pair[0])])
    height = (3.6, 3.0, 2.6, 2.2)[min(len(rows), 4) - 1] * len(rows)
    height += 0.4 + 0.12 * min(len(drawn), 8)
    with panels(len(rows), 2, WIDTH, height, shared=True) as (axes, content):
        for both, (title, row) in zip(axes, rows.items(), strict=True):
            for label in reversed(row):  # the best on top
                _draw_group(both, row[label], name, drawn[label])
            label_axes(both[0], title, y=name)
        label_axes(axes[-1, 0], axes[-1, 0].get_title("left"), STEPS, name)
        label_axes(axes[-1, 1], "", "training seconds")
        if name == LOSS or (name == monitor and groups[0].lower_is_better):
            use_log_scale(list(axes.flat))
        add_legend(axes[0, 0], drawn)
    return content.getvalue()


def _draw_group(axes: Sequence[Axes], group: Group, name: str, style: Style) -> None:
    """The mean of the finished runs with its range, and each unfinished run on its own: a thin
    line that ends in a cross."""
    finished = [run for run in group.runs if run.complete]
    for runs in (finished, *([run] for run in group.runs if not run.complete)):
        curves = [run.log_curve("loss") if name == LOSS else run.metric_curve(name) for run in runs]
        points = _smooth(mean_curve(curves))
        if not points:
            continue
        line = style.line(len(points)) | ({"linewidth": 1.0, "zorder": 1} if style is GREY else {})
        if runs is not finished:
            line |= {"linestyle": "-", "linewidth": 1.0, "markevery": [-1]}
            line |= {"marker": "x", "markersize": 8, "markeredgewidth": 2}
        steps, seconds, means, lows, highs = zip(*points, strict=True)
        for ax, x in zip(axes, (steps, seconds), strict=True):
            ax.plot(x, means, **line)
            if style is not GREY and lows != highs:
                ax.fill_between(x, lows, highs, color=style.color, alpha=0.12, linewidth=0)


def _smooth(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Averages of neighbouring points, if there are more than can be seen."""
    width = -(-len(points) // MOST_POINTS) or 1
    columns = ([*zip(*points[i : i + width], strict=True)] for i in range(0, len(points), width))
    return [CurvePoint(steps[-1], *map(statistics.fmean, rest)) for steps, *rest in columns]


def inner_curves(groups: Sequence[Group]) -> dict[str, dict[str, list[CurvePoint]]]:
    """Means over the runs of the inner loop's statistics: by a label of group and layer, then by
    the name of the statistic. Empty if no run has a log with an equilibrium layer."""
    varies = len({group.size for group in groups}) > 1
    found = {}
    for group in groups:
        logged = [run for run in group.runs if any(point.get("inner") for point in run.points)]
        runs = [run for run in logged if run.complete] or logged
        inner = [point.get("inner") or {} for run in runs for point in run.points]
        layers = dict.fromkeys(layer for one in inner for layer in one)
        for layer in layers:
            label = group.method + (f", {SIZE} {group.size}" if varies else "")
            label += f", {layer}" if len(layers) > 1 else ""
            logs = {name: [run.log_curve("inner", layer, name) for run in runs] for name in INNER}
            curves = {name: mean_curve(some) for name, some in logs.items()}
            found[label] = {name: points for name, points in curves.items() if points}
    return found


def draw_inner(curves: dict[str, dict[str, list[CurvePoint]]]) -> bytes:
    """One panel per statistic of the inner loop, as in the paper's figures."""
    names = [name for name in INNER if any(name in some for some in curves.values())]
    drawn = styles(list(curves))
    rows = -(-len(names) // 3)
    with panels(rows, 3, 12, 2.9 * rows + 0.3 + 0.12 * min(len(drawn), 8)) as (axes, content):
        for ax, name in zip(axes.flat, names, strict=False):
            heading, log_scale = INNER[name]
            for label in reversed(curves):
                points = curves[label].get(name, [])
                line: dict[str, Any] = drawn[label].line(len(points)) | {"linewidth": 1.4}
                ax.plot([p.step for p in points], [p.mean for p in points], **line)
            if log_scale:
                use_log_scale([ax])
            if name == "converged":
                ax.set_ylim(-0.05, 1.05)
            label_axes(ax, heading, STEPS)
        for ax in axes.flat[len(names) :]:
            ax.set_axis_off()
        add_legend(axes[0, 0], drawn)
    return content.getvalue()


def draw_over_steps(searched: Mapping[str, Sequence[AtSteps]], metric: str) -> bytes:
    """A metric and the residual over the number of inner steps; also the spread of predictions from
    random starts, if it was measured."""
    drawn, every = styles(list(searched)), [row for rows in searched.values() for row in rows]
    headings = [metric, "residual, median"]
    headings += ["spread of random starts"] if any(row.spread is not None for row in every) else []
    height = 3.6 + 0.12 * min(len(drawn), 8)
    with panels(1, len(headings), WIDTH * len(headings) / 2, height) as (axes, content):
        for label, rows in searched.items():
            steps = [row.num_steps for row in rows]
            line: dict[str, Any] = drawn[label].line(len(rows))
            columns = zip(
                *((row.metrics[metric], row.residual, row.spread) for row in rows), strict=True
            )
            for ax, some in zip(axes.flat, columns, strict=False):
                ax.plot(steps, [np.nan if value is None else value for value in some], **line)
        for ax, heading in zip(axes.flat, headings, strict=True):
            ax.set_xscale("symlog", linthresh=1)
            use_log_scale([ax])
            label_axes(ax, heading, "inner steps in evaluation")
        add_legend(axes[0, 0], drawn)
    return content.getvalue()
