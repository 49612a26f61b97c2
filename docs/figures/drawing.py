"""What all pictures share: size, colours, legend, and how they are saved."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter
from PIL import Image

FIGURES = Path(__file__).parent
STYLE = {
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"
# Okabe and Ito's colours, distinct for colour-blind readers; dashes and markers differ too.
COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
DASHES = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")


@contextmanager
def picture(
    name: str, rows: int, count: int, size: tuple[float, float], **options: Any
) -> Iterator[Any]:
    """Axes `[rows, count]` to draw on; at the end they are written to a PNG of 128 colours."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, count, figsize=size, squeeze=False, **options)
        yield axes
        content = BytesIO()
        figure.savefig(content, dpi=120, metadata={"Software": None})
        plt.close(figure)
    image = Image.open(content).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(FIGURES / f"{name}.png", optimize=True)


def styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker of each label."""
    looks = zip(COLORS, 2 * DASHES, MARKERS, strict=True)
    return {
        label: {"color": color, "linestyle": dashes, "marker": marker, "markersize": 4}
        for label, (color, dashes, marker) in zip(sorted(set(labels)), looks, strict=False)
    }


def legend_below(axes: Any, drawn: Mapping[str, dict[str, Any]]) -> None:
    """One legend for the whole figure, below the axes, so that it never covers a curve."""
    handles = [Line2D([], [], **look, label=label) for label, look in drawn.items()]
    axes.flat[0].figure.legend(handles=handles, loc="outside lower center", ncols=4)


def mean_curve(runs: Sequence[Any], metric: str) -> dict[str, list[float]]:
    """Mean, lowest and highest value of a metric over runs that were evaluated at the same steps,
    and the mean time."""
    values = list(zip(*(run.curve[metric] for run in runs), strict=True))
    seconds = zip(*(run.curve["training_seconds"] for run in runs), strict=True)
    return {
        "step": runs[0].curve["step"],
        "seconds": [statistics.fmean(some) for some in seconds],
        "mean": [statistics.fmean(some) for some in values],
        "low": [min(some) for some in values],
        "high": [max(some) for some in values],
    }


def draw_curves(
    axes: Sequence[Axes], runs: Sequence[Any], metric: str, look: Mapping[str, Any]
) -> None:
    """The mean of a metric and its range, over steps and over seconds."""
    curve = mean_curve(runs, metric)
    for ax, x in zip(axes, ("step", "seconds"), strict=True):
        ax.plot(curve[x], curve["mean"], **look, markevery=5)
        ax.fill_between(
            curve[x], curve["low"], curve["high"], color=look["color"], alpha=0.12, lw=0
        )
    axes[0].set_xlabel("training steps")
    axes[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[1].set_xlabel("training seconds")
