"""The demonstration's pictures, as PNG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from equipool.demo.study import Landscape, Paths, Result
from equipool.experiments.median.data import DISTRIBUTIONS

# Okabe and Ito's colours, distinct for colour-blind readers; dashes say the same once more.
STYLES = (("#0072B2", "-"), ("#D55E00", "-"), ("#D55E00", ":"))  # of the networks, in order
SET_COLORS = ("#0072B2", "#009E73", "#CC79A7")
GREY = "#666666"
GUESSING = 0.05  # error of one guess for all sets; worse first steps are cut off


@contextmanager
def _figure(file: Path, columns: int, width: float, height: float) -> Iterator[list[Axes]]:
    """Panels to draw on, saved at the end. Does not use pyplot, whose state is global."""
    figure = Figure(figsize=(width, height), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, columns, squeeze=False)[0])
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=11)
    yield axes
    figure.savefig(file)


def _label(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=13)
    ax.set_xlabel(x, fontsize=12)
    ax.set_ylabel(y, fontsize=12)


def bin_means(values: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Average a series over equal bins: positions of the bins' last entries, counted from 1, and
    means.

    Example:
        >>> bin_means(torch.tensor([1.0, 3.0, 5.0, 7.0]), 2)
        (tensor([2, 4]), tensor([2., 6.], dtype=torch.float64))
    """
    parts = values.double().tensor_split(min(num_bins, len(values)))
    ends = torch.tensor([len(part) for part in parts]).cumsum(0)
    return ends, torch.stack([part.mean() for part in parts])


def draw_learning_curves(results: list[Result], file: Path) -> None:
    """Error during training, against steps and against seconds."""
    with _figure(file, 2, 10, 4.2) as (by_step, by_second):
        for result, (color, line) in zip(results, STYLES, strict=False):
            ends, errors = bin_means(result.losses, max(2, min(40, result.steps // 10)))
            seconds = ends * (result.seconds / result.steps)
            for ax, position in ((by_step, ends), (by_second, seconds)):
                ax.plot(position, errors, line, color=color, label=result.name, linewidth=2)
                ax.plot(position[-1], errors[-1], "o", color=color, markersize=6)
        _label(by_step, "by training steps", "training steps", "mean squared error")
        _label(by_second, "by seconds of training", "seconds", "")
        by_step.set_xscale("log")
        by_step.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        by_step.xaxis.set_minor_formatter(ticker.NullFormatter())
        for ax in (by_step, by_second):
            ax.set_yscale("log")
            ax.grid(which="major", alpha=0.3)
        by_second.sharey(by_step)
        if by_step.get_ylim()[0] < GUESSING / 2:
            by_step.set_ylim(top=GUESSING)
        by_second.legend(fontsize=11, frameon=False)


def draw_energy(paths: Paths, kinds: Tensor, errors: Tensor, file: Path) -> None:
    """Energy of a few sets along the inner steps, `kinds [B]` their distributions, and the error of
    the prediction after each step, `errors [S + 1]`."""
    with _figure(file, 2, 10, 4.2) as (energy, error):
        for set_, kind in enumerate(kinds.tolist()):
            first = set_ == kinds.tolist().index(kind)
            energy.plot(
                paths.energy[:, set_],
                color=SET_COLORS[kind],
                linewidth=1.6,
                label=f"a set of {DISTRIBUTIONS[kind]} numbers" if first else None,
            )
        error.plot(errors, color="black", linewidth=1.8)
        error.plot(paths.trained_steps, errors[paths.trained_steps], "o", color="black")
        _label(energy, "energy of six sets", "inner step", "energy")
        _label(error, "error of the prediction", "inner step", "mean squared error")
        for ax in (energy, error):
            ax.set_yscale("log")
            ax.grid(which="major", alpha=0.3)
            ax.axvline(paths.trained_steps, color=GREY, linestyle="--", linewidth=1)
            ax.annotate(
                f" trained with\n {paths.trained_steps} steps",
                (paths.trained_steps, 0.98),
                xycoords=("data", "axes fraction"),
                va="top",
                fontsize=10,
                color=GREY,
            )
        energy.legend(fontsize=10, frameon=False, loc="upper right")


def draw_landscape(landscape: Landscape, file: Path) -> None:
    """Contour lines of the energy, with the path of y."""
    trained = landscape.trained_steps
    with _figure(file, 1, 7.4, 6) as (ax,):
        energy = landscape.energy.clamp(min=torch.finfo(torch.float32).tiny)
        levels = torch.logspace(
            float(energy.min().log10()), float(energy.max().log10()) + 1e-6, 24
        ).tolist()
        filled = ax.contourf(
            landscape.horizontal, landscape.vertical, energy,
            levels=levels, norm=LogNorm(), cmap="cividis",
        )  # fmt: skip
        ax.contour(
            landscape.horizontal, landscape.vertical, energy,
            levels=levels, colors="white", linewidths=0.4, alpha=0.5,
        )  # fmt: skip
        horizontal, vertical = landscape.path.unbind(-1)
        ax.plot(horizontal, vertical, "-", color="white", linewidth=1.4)
        ax.plot(horizontal[: trained + 1], vertical[: trained + 1], ".", color="white", ms=9)
        for step, marker, name in (
            (0, "s", "start"),
            (trained, "o", f"after {trained} steps, as trained"),
            (len(horizontal) - 1, "*", f"after {len(horizontal) - 1} steps"),
        ):
            ax.plot(
                horizontal[step], vertical[step], marker, ms=16 if marker == "*" else 10,
                color="#E69F00", markeredgecolor="black", linestyle="none", label=name,
            )  # fmt: skip
        ax.set_aspect("equal")
        _label(ax, "energy of one set around the path of y", "first direction", "second direction")
        bar = ax.figure.colorbar(filled, ax=ax, shrink=0.85)
        bar.set_label("energy", fontsize=12)
        bar.ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        bar.ax.minorticks_off()
        ax.legend(fontsize=10, loc="upper right", framealpha=0.9)
