"""Figures of results: an empty one, bars, and files whose bytes depend on the numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, or what to install for one."""
    try:
        import matplotlib.figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'plot needs {error.name}: pip install "equipool[report]"', name=error.name
        ) from error
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file, whose suffix chooses the format. The same figure gives the same
    bytes."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "equipool", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if Path(path).suffix == ".svg" else None)


def draw_bars(
    ax: Any, names: Sequence[str], values: Sequence[float], labels: Sequence[str],
    color: str | Sequence[str],
) -> None:  # fmt: skip
    """A horizontal bar with a label for each name."""
    ax.bar_label(ax.barh(names, values, color=color), labels, fontsize=8, padding=2)
    for position, (value, label) in enumerate(zip(values, labels, strict=True)):
        if math.isnan(value):  # there is no bar to put the label at
            ax.text(0.02, position, label, fontsize=8, transform=ax.get_yaxis_transform())
    ax.margins(x=0.2)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
