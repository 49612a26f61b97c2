"""Figures of the page about counting characters: curves, example sets, confusion, mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from equipool.experiments.omniglot.evaluation import confusion_title, draw_set, mistakes_title
from equipool.experiments.registry import OmniglotTask
from equipool.report.figures import DASHES, styles
from equipool.report.groups import Group, mean_curve
from equipool.training.artifacts import Examination, Picture, Table

SHOWN = {"test_accuracy": "test characters", "train_accuracy": "train characters"}
STYLE = {
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "equipool",  # the same picture is the same file
}


def plot_means(by_step: Axes, by_second: Axes, groups: Sequence[Group]) -> None:
    """Means over the runs, a colour for each method and dashes for each metric."""
    drawn = styles([group.method for group in groups])
    for group in groups:
        for metric, dashes in zip(SHOWN, DASHES, strict=False):
            mean = mean_curve([run.metric_curve(metric) for run in group.runs])
            style: dict[str, Any] = {"color": drawn[group.method].color, "linestyle": dashes,
                                     "linewidth": 1.8}  # fmt: skip
            for ax, position in ((by_step, 0), (by_second, 1)):
                ax.plot(
                    [point[position] for point in mean], [point.mean for point in mean], **style
                )
    for method, own in drawn.items():
        by_second.plot([], [], color=own.color, linewidth=1.8, label=method)
    for label, dashes in zip(SHOWN.values(), DASHES, strict=False):
        by_second.plot([], [], color="gray", linestyle=dashes, linewidth=1.8, label=label)
    by_second.sharey(by_step)


def draw_curves(groups: Sequence[Group], file: Path) -> None:
    """As in the paper's figure: test accuracy solid and train accuracy dashed, by steps; and by
    seconds."""
    with plt.rc_context(STYLE):
        _, (by_step, by_second) = plt.subplots(1, 2, figsize=(9.4, 3.4))
        plot_means(by_step, by_second, groups)
        by_second.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        by_step.set(xlabel="training steps", ylabel="right answers", ylim=(0, None))
        by_step.yaxis.set_major_formatter(PercentFormatter(1.0))
        by_second.set(xlabel="training seconds")
        for ax in (by_step, by_second):
            ax.axhline(0.1, color="gray", linewidth=0.8, linestyle=":")  # guessing
        plt.savefig(file, metadata={"Date": None})
        plt.close()


def draw_sets(file: Path) -> None:
    """A set of each number of test characters, with the number."""
    task = OmniglotTask()
    device = torch.device("cpu")
    data, sets = task.data(device), task.held_out("test", device)
    shown = {}
    for number in range(1, 11):
        images = sets.images[int((sets.num_classes == number).nonzero()[0])]
        drawn = draw_set(data.pixels[images], images // data.pools["test"].drawings)
        shown[f"{number} character{'s' if number > 1 else ''}"] = drawn.numpy()
    draw_panels(shown, file)


def draw_panels(shown: Mapping[str, object], file: Path) -> None:
    """Pictures of sets in two columns, each under its title."""
    rows = -(-len(shown) // 2)
    with plt.rc_context(STYLE):
        _, axes = plt.subplots(rows, 2, figsize=(7, 1.04 * rows), squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, (title, pixels) in zip(axes.T.flat, shown.items(), strict=False):
            ax.imshow(pixels, interpolation="nearest")
            ax.set_title(title, loc="left")
        plt.savefig(file, dpi=110, metadata={"Software": None}, pil_kwargs={"optimize": True})
        plt.close()


def draw_wrong(pictures: Sequence[Picture], file: Path) -> None:
    """Sets that are counted wrong, with the network's answers."""
    draw_panels({p.caption: plt.imread(BytesIO(p.png), "png") for p in pictures}, file)


def draw_confusion(table: Table, file: Path) -> None:
    """The answers for sets of each true number, in percent of them."""
    answers = table.headings[1:-1]
    shares = [[float(cell) for cell in row[1:-1]] for row in table.rows]
    with plt.rc_context(STYLE):
        _, ax = plt.subplots(figsize=(4.6, 4.2))
        ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for true, row in enumerate(shares):
            for answer, share in enumerate(row):
                if share >= 0.0005:
                    color = "white" if share > 0.5 else "black"
                    place = {"ha": "center", "va": "center", "fontsize": 7, "color": color}
                    ax.text(answer, true, f"{100 * share:.1f}", **place)
        ax.set_xticks(range(len(answers)), answers)
        ax.set_yticks(range(len(shares)), [str(row[0]) for row in table.rows])
        ax.set(xlabel="answer", ylabel="true number of characters")
        plt.savefig(file, metadata={"Date": None})
        plt.close()


def draw_examination(found: Examination, out: Path) -> None:
    """The confusion matrix of the test sets, and the sets that are counted wrong."""
    tables = {table.title: table for table in found.tables}
    galleries = {gallery.title: gallery.pictures for gallery in found.galleries}
    table, wrong = confusion_title("test"), mistakes_title("test")
    if table not in tables or wrong not in galleries:
        raise ValueError(
            f"the examination has {[*tables, *galleries]}, expected {table!r} and {wrong!r} in it"
        )
    draw_confusion(tables[table], out / "omniglot-confusion.svg")
    draw_wrong(galleries[wrong], out / "omniglot-wrong.png")
