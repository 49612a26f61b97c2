"""Figures and sections of what happened during training: metrics, loss and inner loop."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes

from equipool.report.groups import (
    CHANGED,
    METHOD,
    SIZE,
    CurvePoint,
    Group,
    group_runs,
    mean_curve,
    shorten,
    sort_key,
)
from equipool.report.page import Section
from equipool.report.plotting import (
    GREY,
    WIDTH,
    Style,
    add_legend,
    label_axes,
    label_steps,
    panels,
    styles,
    use_log_scale,
)
from equipool.report.runs import RunResult
from equipool.report.tables import summarize_reported
from equipool.training.artifacts import Picture

MOST_FACETS = 6
MOST_POINTS = 150  # of a curve, of which a long log has many more
Curve = list[tuple[int, float, float | None]]  # step, training seconds, value

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
class Facet:
    """A row of panels: groups that share some settings, by a label of what they differ in."""

    title: str
    groups: dict[str, Group]


def facets(groups: Sequence[Group]) -> list[Facet]:
    """Split groups into rows of panels, so that within a row few settings differ.

    Methods are compared within a row, all other settings that vary make rows. Settings with many
    values go into the labels instead, while there are more than `MOST_FACETS` rows or most rows
    have one group only.
    """
    counts = {
        name: len({str(group.settings[name]) for group in groups}) for name in groups[0].settings
    }
    varying = [name for name, count in counts.items() if count > 1]
    within = max(varying, key=lambda name: (name == METHOD, counts[name]), default="")
    between = [name for name in varying if name not in (within, CHANGED)]
    between.sort(key=lambda name: (name != SIZE, counts[name]))
    rows = _split(groups, between)
    while between and (len(rows) > MOST_FACETS or 2 * len(rows) > len(groups)):
        between.pop()
        rows = _split(groups, between)
    named = [name for name in varying if name not in between]
    return [
        Facet(
            row[0].label(between),
            {group.label(named) or ("usual settings" if named else group.method): group
             for group in row},
        )
        for row in rows
    ]  # fmt: skip


def _split(groups: Sequence[Group], between: Sequence[str]) -> list[list[Group]]:
    """Lists of groups with the same values of these settings, ordered by the values."""
    ordered = sorted(groups, key=lambda group: [sort_key(group.settings[n]) for n in between])
    return [list(row) for _, row in groupby(ordered, key=lambda group: group.label(between))]


def _ranked_labels(rows: Sequence[Facet]) -> list[str]:
    """All labels; those that are among the best in some row come first."""
    ranks: dict[str, int] = {}
    for row in rows:
        for rank, label in enumerate(row.groups):
            ranks[label] = min(rank, ranks.get(label, rank))
    return sorted(ranks, key=lambda label: ranks[label])


def draw_curves(groups: Sequence[Group], metric: str | None = None) -> bytes:
    """A metric of the evaluations, by default the monitored one, against steps and against training
    seconds: means over the runs, and the range between the smallest and the largest."""
    monitor = groups[0].runs[0].kind.monitor
    name = metric or monitor
    log_scale = name == monitor and groups[0].lower_is_better
    return _draw(groups, lambda run: run.metric_curve(name), name, log_scale)


def draw_loss(groups: Sequence[Group]) -> bytes:
    """The training loss against steps and against training seconds."""
    return _draw(groups, RunResult.loss_curve, "training loss", True)


def _draw(
    groups: Sequence[Group], curve: Callable[[RunResult], Curve], name: str, log_scale: bool
) -> bytes:
    rows = facets(groups)
    drawn = styles(_ranked_labels(rows))
    height = (3.6, 3.0, 2.6, 2.2)[min(len(rows), 4) - 1] * len(rows)
    height += 0.4 + 0.12 * min(len(drawn), 8)
    with panels(len(rows), 2, WIDTH, height, shared=True) as (axes, content):
        for (by_step, by_second), row in zip(axes, rows, strict=True):
            for label in reversed(row.groups):  # the best on top
                _draw_group(by_step, by_second, row.groups[label], curve, drawn[label])
            last = row is rows[-1]
            label_steps(by_step, row.title, "training steps" if last else "", name)
            label_axes(by_second, "", "training seconds" if last else "", "")
        if log_scale:
            use_log_scale(list(axes.flat))
        add_legend(axes[0, 0], drawn)
    return content.getvalue()


def _draw_group(
    by_step: Axes, by_second: Axes, group: Group, curve: Callable[[RunResult], Curve], style: Style
) -> None:
    """The mean of the finished runs with its range, and each unfinished run on its own."""
    finished = [curve(run) for run in group.runs if run.complete]
    _draw_mean(by_step, by_second, _smooth(mean_curve(finished)), style)
    for run in group.runs:
        if not run.complete:
            _draw_unfinished(by_step, by_second, _smooth(mean_curve([curve(run)])), style)


def _smooth(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Averages of neighbouring points, if there are more than can be seen."""
    width = -(-len(points) // MOST_POINTS) or 1
    parts = [points[i : i + width] for i in range(0, len(points), width)]
    return [
        CurvePoint(
            part[-1].step,
            *(statistics.fmean(column) for column in list(zip(*part, strict=True))[1:]),
        )
        for part in parts
    ]


def _draw_mean(by_step: Axes, by_second: Axes, points: list[CurvePoint], style: Style) -> None:
    if not points:
        return
    steps, seconds, means, lows, highs = (list(column) for column in zip(*points, strict=True))
    line = style.line(len(points)) | ({"linewidth": 1.0, "zorder": 1} if style is GREY else {})
    for ax, x in ((by_step, steps), (by_second, seconds)):
        ax.plot(x, means, **line)
        if style is not GREY and lows != highs:
            ax.fill_between(x, lows, highs, color=style.color, alpha=0.12, linewidth=0)


def _draw_unfinished(
    by_step: Axes, by_second: Axes, points: list[CurvePoint], style: Style
) -> None:
    """A thin line that ends in a cross."""
    for ax, column in ((by_step, 0), (by_second, 1)):
        x, y = [point[column] for point in points], [point.mean for point in points]
        ax.plot(x, y, color=style.color, linewidth=1.0)
        ax.plot(x[-1:], y[-1:], color=style.color, marker="x", markersize=8, markeredgewidth=2)


def _inner_curve(run: RunResult, layer: str, name: str) -> Curve:
    return [
        (point["step"], point.get("training_seconds", 0.0), point["inner"][layer].get(name))
        for point in run.points
        if layer in (point.get("inner") or {})
    ]


def inner_curves(groups: Sequence[Group]) -> dict[str, dict[str, list[CurvePoint]]]:
    """Means over the runs of the inner loop's statistics: by a label of group and layer, then by
    the name of the statistic. Empty if no run has a log with an equilibrium layer."""
    varies = len({group.size for group in groups}) > 1
    found = {}
    for group in groups:
        logged = [run for run in group.runs if any(point.get("inner") for point in run.points)]
        runs = [run for run in logged if run.complete] or logged
        layers = {
            layer: 0 for run in runs for point in run.points for layer in point.get("inner") or {}
        }
        for layer in layers:
            label = group.method + (f", {SIZE} {group.size}" if varies else "")
            label += f", {layer}" if len(layers) > 1 else ""
            curves = {
                name: mean_curve([_inner_curve(run, layer, name) for run in runs]) for name in INNER
            }
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
            label_steps(ax, heading)
        for ax in axes.flat[len(names) :]:
            ax.set_axis_off()
        add_legend(axes[0, 0], drawn)
    return content.getvalue()


def learning_curves(runs: Sequence[RunResult]) -> list[Section]:
    """The monitored metric over the training."""
    groups = shorten(group_runs(runs))
    if not groups:
        return []
    monitor = groups[0].runs[0].kind.monitor
    text = (
        "Lines are means over the seeds, shaded areas the range between the best and the worst "
        "seed. Left by training steps, right by training time, evaluations excluded: a step takes "
        "longer with some methods. Times compare only between runs on the same device that shared "
        "it with equally many others."
    )
    picture = Picture(f"{monitor} by training steps and by training time", draw_curves(groups))
    return [
        Section(
            "Learning curves",
            [text, *_unfinished([run for run in runs if run.curve])],
            pictures=[picture],
        )
    ]


def _unfinished(runs: Sequence[RunResult]) -> list[str]:
    names = [f"{run.name} (step {run.steps:,} of {run.planned_steps:,})"
             for run in runs if not run.complete]  # fmt: skip
    if not names:
        return []
    return [f"Thin lines that end in a cross are unfinished runs: {', '.join(names)}."]


def further_metrics(runs: Sequence[RunResult]) -> list[Section]:
    """The task's further metrics: a table, and curves of each."""
    groups = shorten(group_runs(runs))
    metrics = runs[0].kind.reported
    if not groups or not metrics:
        return []
    text = (
        "Means and standard deviations over the seeds: at the last evaluation, and at the best "
        f"evaluation by {runs[0].kind.monitor}."
    )
    pictures = [
        Picture(f"{metric} by training steps and by training time", draw_curves(groups, metric))
        for metric in metrics
        if any(group.mean_curve(metric) for group in groups)
    ]
    return [Section(", ".join(metrics), [text], [summarize_reported(runs)], pictures)]


def training_loss(runs: Sequence[RunResult]) -> list[Section]:
    """The loss from the logs: also of runs that were interrupted before their first evaluation."""
    logged = [run for run in runs if run.loss_curve()]
    if not logged:
        return []
    picture = draw_loss(shorten(group_runs(logged, evaluated=False)))
    text = "The loss of the training batches, from the logs of run directories."
    caption = "Training loss by training steps and by training time"
    pictures = [Picture(caption, picture)]
    return [Section("Training loss", [text, *_unfinished(logged)], pictures=pictures)]


def inner_loop(runs: Sequence[RunResult]) -> list[Section]:
    """What the equilibrium layers did during training."""
    curves = inner_curves(shorten(group_runs(runs, evaluated=False)))
    if not curves:
        return []
    text = (
        "Statistics of the equilibrium layers on a training batch, at every entry of the log: the "
        "largest component of the gradient at the last iterate (mean over sets), the auxiliary "
        "loss, and the learned parameters of the inner optimiser. Means over the seeds."
    )
    picture = Picture("Statistics of the inner loop by training steps", draw_inner(curves))
    return [Section("Inner loop", [text], pictures=[picture])]
