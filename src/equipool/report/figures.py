"""Figures of runs, as PNG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from equipool.report.runs import SIZE, Runs, label_runs

# Okabe and Ito's colours, which colour-blind readers can distinguish; lines differ in markers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
MARKERS = "osD^vPX*"
GREY = {"color": "#b8b8b8", "linewidth": 1.0, "zorder": 1}
WIDTH, CHARACTERS = 10.0, 110  # of a figure, in inches and of its legend
MOST_POINTS = 150  # of a curve, of which a long log has many more
MOST_ROWS = 6
STEPS = "training steps"


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How the line of each label is drawn: the first eight in a colour of their own, in grey the
    others."""
    unique = list(dict.fromkeys(labels))
    own = [{"color": color, "marker": marker, "markersize": 4, "linewidth": 1.6, "label": label}
           for color, marker, label in zip(COLORS, MARKERS, unique, strict=False)]  # fmt: skip
    return dict(zip(unique, [*own, *[GREY] * len(unique)], strict=False))


@contextmanager
def panels(rows: int, columns: int, height: float, **shared: Any) -> Iterator[tuple[Any, BytesIO]]:
    """Axes to draw on, `[rows, columns]`, with a legend of all labels below them, and the buffer
    that receives the PNG at the end. Does not use pyplot, so that no global state changes."""
    figure = Figure(figsize=(WIDTH, height * rows), dpi=120, layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False, **shared)
    content = BytesIO()
    yield axes, content
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(which="major", alpha=0.3)
        if not ax.has_data():
            ax.set_axis_off()
        if ax.get_xlabel() == STEPS:
            ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    drawn = {line.get_label(): line for ax in axes.flat for line in ax.lines}
    named = [label for label in drawn if not str(label).startswith("_")]
    columns = max(1, CHARACTERS // (5 + max(map(len, named), default=0)))
    lines = [drawn[label] for label in named]
    figure.legend(lines, named, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(content, format="png")


def use_log_scale(ax: Any) -> None:
    """A logarithmic y axis, if everything drawn is positive."""
    drawn = [np.asarray(line.get_ydata(), float) for line in ax.lines]
    if drawn and all(np.all((values > 0) | np.isnan(values)) for values in drawn):
        ax.set_yscale("log")


def draw_curves(runs: Runs) -> bytes:
    """The monitored metric against steps and against training seconds, a row of panels per size:
    means over the finished runs of a method, and the range between the smallest and the largest. An
    unfinished run is a dotted line of its own."""
    metric = runs.kind.monitor
    of_run = runs.table[["run", "complete"]].assign(size="", named=runs.table["method"])
    if SIZE in runs.varying and runs.table[SIZE].nunique() <= MOST_ROWS:
        words = [f", {SIZE} {size}" for size in runs.table[SIZE]]
        of_run["size"] = [word[2:] for word in words]
        of_run["named"] = [method.replace(word, "") for method, word in zip(
            runs.table["method"], words, strict=True)]  # fmt: skip
    curves = runs.curves.merge(of_run, on="run")
    curves["alone"] = curves["run"].where(~curves["complete"], "")
    best_first = curves.sort_values(metric, ascending=runs.kind.lower_is_better)
    looks = styles(best_first["named"])
    with panels(curves["size"].nunique(), 2, 3.6, sharey=True) as (axes, content):
        for both, (size, part) in zip(axes, curves.groupby("size", sort=False), strict=True):
            for (method, run), same in part.groupby(["named", "alone"], sort=False):
                _draw_line(both, same, metric, looks[method] | ({"linestyle": ":"} if run else {}))
            both[0].set(title=size, ylabel=metric, xlabel=STEPS)
            both[1].set_xlabel("training seconds")
            if runs.kind.lower_is_better:
                use_log_scale(both[0])
    return content.getvalue()


def _draw_line(axes: Sequence[Any], runs: pd.DataFrame, metric: str, look: dict[str, Any]) -> None:
    """The mean over runs at the steps at which all of them are finite, and their range."""
    by_step = runs.groupby("step").agg(
        seconds=("training_seconds", "mean"), mean=(metric, "mean"), low=(metric, "min"),
        high=(metric, "max"), count=(metric, "count"),
    )  # fmt: skip
    points = by_step[by_step["count"] == runs["run"].nunique()]
    for ax, x in zip(axes, (points.index, points["seconds"]), strict=True):
        ax.plot(x, points["mean"], markevery=max(1, len(points) // 6), **look)
        ax.fill_between(x, points["low"], points["high"], color=look["color"], alpha=0.12, lw=0)


def varied_numbers(runs: Runs) -> list[str]:
    """The settings of which there are several numbers, or lists of numbers such as 600x300."""
    varying = [name for name in runs.varying if name != "seed"]
    return [name for name in varying if runs.table[name].map(_position).notna().all()]


def _position(value: Any) -> float | None:
    """Where a number, or a list of numbers, is on an axis."""
    try:
        return sum(map(float, str(value).split("x")))
    except ValueError:
        return None


def draw_setting(runs: Runs, setting: str) -> bytes:
    """The best monitored metric and the seconds per step against a setting: dots are runs, lines
    the means of those that differ in nothing else."""
    metric, table = runs.kind.monitor, runs.table
    others = [name for name in runs.varying if name not in (setting, "seed")]
    found = runs.best()[["run", metric]].merge(
        table.assign(
            line=label_runs(table, others), order=table[setting].map(_position),
            cost=table["training seconds"] / table["steps taken"].clip(lower=1),
        ),
        on="run",
    )  # fmt: skip
    found = found.sort_values("order")
    found["at"] = found[setting].map(str)
    looks = styles(found["line"])
    with panels(1, 2, 3.8) as (axes, content):
        for ax, column, title in zip(
            axes[0], (metric, "cost"), (f"best {metric}", "seconds per step"), strict=True
        ):
            for line, same in found.groupby("line", sort=False):
                means = same.groupby("at", sort=False)[column].mean()
                ax.plot(means.index, means, **looks[line])
                ax.plot(same["at"], same[column], ".", color=looks[line]["color"], alpha=0.6)
            ax.set(title=title, xlabel=setting.replace("_", " "))
            if column == "cost" or runs.kind.lower_is_better:
                use_log_scale(ax)
    return content.getvalue()


def draw_log(runs: Runs) -> bytes:
    """The training loss and the statistics of the equilibrium layers against steps: a panel each,
    a line per run."""
    columns = [name for name in runs.log if name == "loss" or ": " in str(name)]
    columns = [name for name in columns if runs.log[name].notna().any()]
    looks = styles(runs.table["method"])
    with panels(-(-len(columns) // 3), 3, 3.0) as (axes, content):
        for ax, column in zip(axes.flat, columns, strict=False):
            for (method, _), same in runs.log.groupby(["method", "run"], sort=False):
                every = max(1, len(same) // MOST_POINTS)
                means = same[["step", column]].astype(float).rolling(every, min_periods=1).mean()
                ax.plot(means["step"][::every], means[column][::every],
                        **looks[method] | {"marker": ""})  # fmt: skip
            ax.set(title=column, xlabel=STEPS)
            use_log_scale(ax)
    return content.getvalue()


def draw_over_steps(runs: Runs) -> bytes:
    """The monitored metric, the residual and the spread of random starts over the number of inner
    steps in evaluation."""
    found = runs.over_steps.dropna(axis="columns", how="all")
    shown = [name for name in (runs.kind.monitor, "residual", "spread") if name in found]
    lines = found.groupby(found["run"] + ", " + found["checkpoint"], sort=False)
    looks = styles(lines.groups)
    with panels(1, len(shown), 3.8) as (axes, content):
        for ax, column in zip(axes[0], shown, strict=True):
            for line, rows in lines:
                ax.plot(rows["num_steps"], rows[column], **looks[line])
            ax.set(title=column, xlabel="inner steps in evaluation")
            ax.set_xscale("symlog", linthresh=1)
            use_log_scale(ax)
    return content.getvalue()
