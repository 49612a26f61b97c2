"""The report's pictures, as PNG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from equipool.report.groups import SIZE, Group

# Okabe and Ito's colours, which the colour-blind tell apart; dashes where they do not suffice.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")

# Statistics of the inner loop: heading, and whether on a logarithmic axis.
INNER = {
    "residual": ("final gradient, max-norm", True),
    "aux_loss": ("auxiliary loss", True),
    "learning_rate": ("inner step size", False),
    "momentum": ("inner momentum", False),
    "regularizer_weight": ("weight of the regulariser", False),
    "converged": ("share of sets that converged", False),
}
SHARES = ("converged",)


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    color: str
    dashes: str


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label, whatever their order."""
    return {
        label: Style(COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)])
        for i, label in enumerate(sorted(set(labels)))
    }


@contextmanager
def panels(rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Any, BytesIO]]:
    """Panels to draw on `[rows, columns]`, and where the picture is at the end. Without pyplot,
    nothing global is touched."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=10)
        ax.grid(which="major", alpha=0.3)
    content = BytesIO()
    yield axes, content
    figure.savefig(content, format="png")


def label_axes(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=12)
    ax.set_xlabel(x, fontsize=11)
    ax.set_ylabel(y, fontsize=11)


def label_steps(ax: Axes, title: str, y: str = "") -> None:
    """As `label_axes` for an axis of steps, of which there may be millions."""
    label_axes(ax, title, "training steps", y)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _is_logarithmic(group: Group) -> bool:
    """Errors are; accuracies are not."""
    values = [run.value(entry) for run in group.runs for entry in run.curve]
    return group.lower_is_better and all(value is None or value > 0 for value in values)


def draw_curves(groups: Sequence[Group]) -> bytes:
    """The monitored metric against steps and against seconds of training; a row for each size.
    Runs are thin, the means over them thick."""
    drawn = styles([group.method for group in groups])
    sizes = list(dict.fromkeys(group.size for group in groups))
    monitor = groups[0].runs[0].kind.monitor
    with panels(len(sizes), 2, 10, 3.6 * len(sizes)) as (axes, content):
        for (by_step, by_second), size in zip(axes, sizes, strict=True):
            same = [group for group in groups if group.size == size]
            for group in same:
                _draw_group(by_step, by_second, group, drawn[group.method])
            where = "" if size is None else f"{SIZE} {size}: "
            label_steps(by_step, f"{where}by steps", monitor)
            label_axes(by_second, f"{where}by seconds", "seconds of training", "")
            if all(_is_logarithmic(group) for group in same):
                by_step.set_yscale("log")
                by_second.set_yscale("log")
            by_second.sharey(by_step)
            by_second.legend(fontsize=10, frameon=False)
    return content.getvalue()


def _draw_group(by_step: Axes, by_second: Axes, group: Group, style: Style) -> None:
    thick: dict[str, Any] = {"color": style.color, "linestyle": style.dashes, "linewidth": 2.2}
    thin: dict[str, Any] = {"color": style.color, "linewidth": 0.8, "alpha": 0.4}
    mean = group.mean_curve(group.runs[0].kind.monitor)
    for ax, key, position in ((by_step, "step", 0), (by_second, "training_seconds", 1)):
        for run in group.runs:
            values = [_or_gap(run.value(entry)) for entry in run.curve]
            ax.plot([entry[key] for entry in run.curve], values, **thin)
        ax.plot([point[position] for point in mean], [point[2] for point in mean], **thick,
                label=group.method, marker="o" if len(mean) < 3 else "")  # fmt: skip


def draw_reported(groups: Sequence[Group], metrics: Sequence[str]) -> bytes:
    """Further metrics against steps and against seconds of training, means over the runs; a row for
    each size, a colour for each method and dashes for each metric."""
    sizes = list(dict.fromkeys(group.size for group in groups))
    with panels(len(sizes), 2, 10, 3.6 * len(sizes)) as (axes, content):
        for (by_step, by_second), size in zip(axes, sizes, strict=True):
            same = [group for group in groups if group.size == size]
            plot_means(by_step, by_second, same, metrics)
            where = "" if size is None else f"{SIZE} {size}: "
            label_steps(by_step, f"{where}by steps")
            label_axes(by_second, f"{where}by seconds", "seconds of training", "")
    return content.getvalue()


def plot_means(
    by_step: Axes, by_second: Axes, groups: Sequence[Group], metrics: Sequence[str]
) -> None:
    """Draw the means over the runs of metrics, the first solid, the second dashed, and say which
    is which."""
    drawn = styles([group.method for group in groups])
    for group in groups:
        for metric, dashes in zip(metrics, DASHES, strict=False):
            mean = group.mean_curve(metric)
            style: dict[str, Any] = {"color": drawn[group.method].color, "linestyle": dashes,
                                     "linewidth": 1.8}  # fmt: skip
            for ax, position in ((by_step, 0), (by_second, 1)):
                ax.plot([point[position] for point in mean], [point[2] for point in mean], **style,
                        marker="o" if len(mean) < 3 else "")  # fmt: skip
    for method, own in drawn.items():
        by_second.plot([], [], color=own.color, linewidth=1.8, label=method)
    for metric, dashes in zip(metrics, DASHES, strict=False):
        by_second.plot([], [], color="gray", linestyle=dashes, linewidth=1.8, label=metric)
    by_second.sharey(by_step)
    by_second.legend(fontsize=10, frameon=False)


def _or_gap(value: float | None) -> float:
    return float("nan") if value is None else value


def draw_sizes(groups: Sequence[Group]) -> bytes:
    """The monitored metric against the embedding's size, a line for each method: thick the mean of
    the last evaluations, thin the best evaluation of all runs. The paper's Figure 2."""
    drawn = styles([group.method for group in groups])
    with panels(1, 1, 6.4, 4) as (axes, content):
        ax = axes[0, 0]
        for method, style in drawn.items():
            same = [group for group in groups if group.method == method]
            sizes = [group.size for group in same]
            ax.plot(sizes, [_or_gap(group.mean()) for group in same], color=style.color,
                    linestyle=style.dashes, linewidth=2.2, marker="o", label=method)  # fmt: skip
            ax.plot(sizes, [_or_gap(group.best_evaluation()) for group in same], color=style.color,
                    linestyle=style.dashes, linewidth=1, marker=".", alpha=0.5)  # fmt: skip
        sizes = sorted({group.size for group in groups})
        ax.set_xscale("log")
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.minorticks_off()
        if all(_is_logarithmic(group) for group in groups):
            ax.set_yscale("log")
        monitor = groups[0].runs[0].kind.monitor
        label_axes(ax, f"{monitor} by size: mean (thick) and best", SIZE, monitor)
        ax.legend(fontsize=10, frameon=False)
    return content.getvalue()


@dataclass(frozen=True)
class InnerLine:
    """The statistics of one layer of one run over the training."""

    label: str
    steps: list[int]
    entries: list[dict[str, float | None]]


def inner_lines(groups: Sequence[Group]) -> list[InnerLine]:
    """The inner loops of these runs; none where there is no equilibrium layer, or no log."""
    found = []
    for group in groups:
        where = "" if group.size is None else f", {SIZE} {group.size}"
        for run in group.runs:
            points = [point for point in run.points if point.get("inner")]
            layers = list(points[0]["inner"]) if points else []
            for layer in layers:
                label = f"{group.method}{where}" + (f", {layer}" if len(layers) > 1 else "")
                steps = [point["step"] for point in points]
                entries = [point["inner"].get(layer, {}) for point in points]
                found.append(InnerLine(label, steps, entries))
    return found


def draw_inner(lines: Sequence[InnerLine]) -> bytes:
    """Statistics of the inner loops over the training, a panel for each, as in the paper's
    figures."""
    names = [name for name in INNER if any(name in e for line in lines for e in line.entries)]
    drawn = styles([line.label for line in lines])
    rows = -(-len(names) // 3)
    with panels(rows, 3, 12, 3 * rows) as (axes, content):
        for ax, name in zip(axes.flat, names, strict=False):
            heading, logarithmic = INNER[name]
            told: set[str] = set()
            positive = True
            for line in lines:
                values = [_or_gap(entry.get(name)) for entry in line.entries]
                positive &= all(value > 0 for value in values)
                style = drawn[line.label]
                ax.plot(line.steps, values, color=style.color, linestyle=style.dashes,
                        linewidth=1.2, alpha=0.8, marker="o" if len(values) < 3 else "",
                        label=None if line.label in told else line.label)  # fmt: skip
                told.add(line.label)
            if logarithmic and positive:
                ax.set_yscale("log")
            if name in SHARES:
                ax.set_ylim(-0.05, 1.05)
            label_steps(ax, heading)
        for ax in axes.flat[len(names) :]:
            ax.set_axis_off()
        axes[0, 0].legend(fontsize=9, frameon=False)
    return content.getvalue()
