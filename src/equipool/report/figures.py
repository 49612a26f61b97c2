"""Figures of runs, as PNG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from equipool.report.runs import Runs, label_runs

# Okabe and Ito's colours, which colour-blind readers can distinguish; lines differ in markers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
MARKERS = "osD^vPX*"
GREY = {"color": "#b8b8b8", "linewidth": 1.0, "zorder": 1}
SIZE = (10.0, 3.8)  # of a figure, in inches


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How the line of each label is drawn: the first eight in a colour of their own, in grey the
    others."""
    unique = list(dict.fromkeys(labels))
    own = [{"color": color, "marker": marker, "markersize": 4, "linewidth": 1.6, "label": label}
           for color, marker, label in zip(COLORS, MARKERS, unique, strict=False)]  # fmt: skip
    return dict(zip(unique, [*own, *[GREY] * len(unique)], strict=False))


@contextmanager
def panels(**shared: Any) -> Iterator[tuple[Any, BytesIO]]:
    """Two axes to draw on, with a legend of the first one's labels below them, and the buffer
    that receives the PNG at the end. Does not use pyplot, so that no global state changes."""
    figure = Figure(figsize=SIZE, dpi=120, layout="constrained")
    axes, content = figure.subplots(1, 2, **shared), BytesIO()
    yield axes, content
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(which="major", alpha=0.3)
    labels = axes[0].get_legend_handles_labels()
    figure.legend(*labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(content, format="png")


def use_log_scale(ax: Any) -> None:
    """A logarithmic y axis, if everything drawn is positive."""
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    if ((drawn > 0) | np.isnan(drawn)).all():
        ax.set_yscale("log")


def draw_curves(runs: Runs) -> bytes:
    """The monitored metric against steps and against training seconds: means over the runs of a
    method, and the range between the smallest and the largest."""
    metric = runs.kind.monitor
    best_first = runs.curves.sort_values(metric, ascending=runs.kind.lower_is_better)
    looks = styles(best_first["method"])
    with panels(sharey=True) as (axes, content):
        for method, same in runs.curves.groupby("method", sort=False):
            _draw_line(axes, same, metric, looks[method])
        axes[0].set(ylabel=metric, xlabel="training steps")
        axes[1].set_xlabel("training seconds")
        if runs.kind.lower_is_better:
            use_log_scale(axes[0])
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
    with panels() as (axes, content):
        for ax, column, title in zip(
            axes, (metric, "cost"), (f"best {metric}", "seconds per step"), strict=True
        ):
            for line, same in found.groupby("line", sort=False):
                means = same.groupby("at", sort=False)[column].mean()
                ax.plot(means.index, means, **looks[line])
                ax.plot(same["at"], same[column], ".", color=looks[line]["color"], alpha=0.6)
            ax.set(title=title, xlabel=setting.replace("_", " "))
            if column == "cost" or runs.kind.lower_is_better:
                use_log_scale(ax)
    return content.getvalue()
