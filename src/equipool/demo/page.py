"""What the user sees: progress bars, a table, pictures, and a page that explains them.

Sentences about results are made from the numbers, so that the page says what was measured.
"""

from __future__ import annotations

import base64
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jinja2
import torch
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from torch import Tensor

import equipool
from equipool.demo.study import Landscape, Paths, Plan, Result, Study, run_study
from equipool.experiments.median.data import DISTRIBUTIONS
from equipool.training.progress import Progress

TEMPLATE = Path(__file__).with_name("page.html.j2")
HEADINGS = ("network", "parameters", "steps", "seconds", "test error", "ratio")
SAME = 1.1  # errors within this factor are called the same

# Okabe and Ito's colours, distinct for colour-blind readers; dashes say the same once more.
STYLES = (("#0072B2", "-"), ("#D55E00", "-"), ("#D55E00", ":"))  # of the networks, in order
SET_COLORS = ("#0072B2", "#009E73", "#CC79A7")
GREY = "#666666"
GUESSING = 0.05  # error of one guess for all sets; worse first steps are cut off


class Bar(Progress):
    """A bar for the training of one network, with its latest error and the time left."""

    def __init__(self, bars: Bars, name: str) -> None:
        self.bars = bars
        self.task = bars.add_task(name, total=None, error="")

    def begin(self, run: str, step: int, steps: int) -> None:
        self.bars.update(self.task, total=steps, completed=step)

    def advance(self, run: str, step: int) -> None:
        self.bars.update(self.task, completed=step)

    def report(self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]) -> None:
        if (loss := numbers.get("loss")) is not None:
            self.bars.update(self.task, error=f"error {loss:.1e}")

    def message(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None: ...


def show(plan: Plan, out: Path) -> Path:
    """Run the plan and write pictures and page to `out`; returns the page's file."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    columns = (
        TextColumn("{task.description:<25}"), BarColumn(bar_width=24), TaskProgressColumn(),
        TextColumn("{task.fields[error]:>13}"), TimeRemainingColumn(compact=True),
    )  # fmt: skip
    console.print("Training networks to compute the median of 100 numbers, about a minute.")
    with Bars(*columns, console=console) as bars:
        study = run_study(plan, lambda name: Bar(bars, name))
    console.print(results_table(study.results))
    console.print(about_curves(study.results))
    pictures = {name: out / f"{name}.png" for name in ("learning-curves", "energy", "landscape")}
    draw_learning_curves(study.results, pictures["learning-curves"])
    draw_energy(study.paths, study.kinds, study.error_by_step, pictures["energy"])
    draw_landscape(study.landscape, pictures["landscape"])
    page = out / "index.html"
    write_page(study, plan, pictures, page)
    console.print(f"Open this page in a browser: {page.resolve()}", soft_wrap=True)
    return page


def rows(results: list[Result]) -> list[tuple[str, ...]]:
    """A line for each network; ratios are to the error of the first."""
    return [
        (r.name, f"{r.parameters:,}", f"{r.steps:,}", f"{r.seconds:.1f}", f"{r.error:.2e}",
         f"{r.error / results[0].error:.2f}")
        for r in results
    ]  # fmt: skip


def results_table(results: list[Result]) -> Table:
    """The results as a table for the terminal."""
    shown = Table(title="Median of 100 numbers")
    for position, heading in enumerate(HEADINGS):
        shown.add_column(heading, justify="right" if position else "left")
    for row in rows(results):
        shown.add_row(*row)
    return shown


def write_page(study: Study, plan: Plan, pictures: dict[str, Path], file: Path) -> None:
    """Write the page with the pictures inside."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(
        headings=HEADINGS,
        rows=rows(study.results),
        plan=plan,
        study=study,
        about_curves=about_curves(study.results),
        about_energy=about_energy(study.paths, study.error_by_step),
        about_landscape=about_landscape(study.landscape),
        images={name.split("-")[-1]: _embedded(file) for name, file in pictures.items()},
        settings=settings(study, plan),
    )
    file.write_text(html, encoding="utf-8")


def settings(study: Study, plan: Plan) -> dict[str, str]:
    """The settings of the run, for the end of the page."""
    layer = study.layer
    learned = {
        "step size": getattr(layer.solver, "learning_rate", None),
        "momentum": getattr(layer.solver, "momentum", None),
        "regulariser's weight": getattr(layer.regularizer, "weight", None),
    }
    numbers = [f"{name} {value.item():.3f}" for name, value in learned.items() if value is not None]
    config = plan.config(study.results[0].steps)
    budget = f"{plan.steps:,} steps" if plan.steps else f"about {plan.seconds:g} seconds"
    return {
        "seed": str(plan.seed),
        "budget": f"{budget} for each network",
        "sizes": f"width {plan.width}, pooled vector {plan.channels}, {plan.inner_steps} inner "
        f"steps, {plan.batch_size} sets per training step",
        "training": f"Adam, learning rate {config.learning_rate:g}, warm-up, {config.schedule}, "
        f"gradient norm clipped at {config.clip_norm:g}",
        "learned": ", ".join(numbers),
        "versions": f"equipool {equipool.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads",
    }


def about_curves(results: list[Result]) -> str:
    """What the learning curves show: the first network against each of the others."""
    first, *others = results
    sentences = []
    for other in others:
        condition = f"After {first.steps:,} steps each"
        if other.steps != first.steps:
            condition = f"After about equal time ({first.steps:,} and {other.steps:,} steps)"
        sentences.append(compare(first, other, condition))
    longest = others[-1]  # the best measured
    slower = first.seconds / first.steps / (longest.seconds / longest.steps)
    sentences.append(f"A training step of {first.method} takes {slower:.1f} times as long.")
    return " ".join(sentences)


def compare(first: Result, second: Result, condition: str) -> str:
    """Which of two networks has the smaller test error, and by how much."""
    ratio = second.error / first.error
    if not ratio > 0:
        return f"{condition}, one of the two errors is not finite."
    lower, higher = (first, second) if ratio > 1 else (second, first)
    factor = max(ratio, 1 / ratio)
    if factor < SAME:
        both = f"{first.method} and {second.method}"
        return f"{condition}, the test errors of {both} are about the same."
    return (
        f"{condition}, the test error of {lower.method} is {factor:.1f} times lower than that of "
        f"{higher.method}."
    )


def about_energy(paths: Paths, errors: Tensor) -> str:
    """What the energies along the path show."""
    trained, last = paths.trained_steps, paths.num_steps
    start, middle, end = paths.energy[0], paths.energy[trained], paths.energy[-1]
    falls = (
        f"From the start to step {trained} the energy falls in {int((middle < start).sum())} of "
        f"{paths.energy.shape[1]} sets, and from there to step {last} in "
        f"{int((end < middle).sum())} of them."
    )
    ratio = float(errors[last] / errors[trained])
    beginning = f"The prediction after {last} steps"
    if not ratio < float("inf"):
        return f"{falls} {beginning} is not finite."
    found, more = "about as good as", "."
    if ratio > SAME:
        found = "worse than"
        more = (
            f": its mean squared error is {_number(ratio)} times as large. The network learned a "
            "short path downhill, not the lowest point."
        )
    elif ratio < 1 / SAME:
        found = "better than"
        more = f": its mean squared error is {_number(1 / ratio)} times lower."
    return f"{falls} {beginning} is {found} after the {trained} steps of the training{more}"


def about_landscape(landscape: Landscape) -> str:
    """What the plane of the landscape leaves out."""
    return (
        f"The plane is the one closest to the path: it holds {landscape.share:.1%} of the path's "
        "squared distance from its end."
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _embedded(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode("ascii")


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
            name = f"a set of {DISTRIBUTIONS[kind]} numbers" if first else None
            energy.plot(paths.energy[:, set_], color=SET_COLORS[kind], linewidth=1.6, label=name)
        error.plot(errors, color="black", linewidth=1.8)
        error.plot(paths.trained_steps, errors[paths.trained_steps], "o", color="black")
        _label(energy, "energy of six sets", "inner step", "energy")
        _label(error, "error of the prediction", "inner step", "mean squared error")
        for ax in (energy, error):
            ax.set_yscale("log")
            ax.grid(which="major", alpha=0.3)
            ax.axvline(paths.trained_steps, color=GREY, linestyle="--", linewidth=1)
            ax.annotate(
                f" trained with\n {paths.trained_steps} steps", (paths.trained_steps, 0.98),
                xycoords=("data", "axes fraction"), va="top", fontsize=10, color=GREY,
            )  # fmt: skip
        energy.legend(fontsize=10, frameon=False, loc="upper right")


def draw_landscape(landscape: Landscape, file: Path) -> None:
    """Contour lines of the energy, with the path of y."""
    trained = landscape.trained_steps
    with _figure(file, 1, 7.4, 6) as (ax,):
        energy = landscape.energy.clamp(min=torch.finfo(torch.float32).tiny)
        low, high = float(energy.min().log10()), float(energy.max().log10()) + 1e-6
        levels = torch.logspace(low, high, 24).tolist()
        plane = landscape.horizontal, landscape.vertical, energy
        filled = ax.contourf(*plane, levels=levels, norm=LogNorm(), cmap="cividis")
        ax.contour(*plane, levels=levels, colors="white", linewidths=0.4, alpha=0.5)
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
