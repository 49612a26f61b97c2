"""What the user sees: progress bars, a table, pictures, and a page that explains them.

Sentences about results are made from the numbers, so that the page says what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
from matplotlib import ticker
from matplotlib.colors import LogNorm
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table as ScreenTable
from torch import Tensor

from equipool.comparison.result import three_digits
from equipool.demo.study import Landscape, Paths, Plan, Result, Study, run_study
from equipool.environment import hardware, versions
from equipool.experiments.median.data import DISTRIBUTIONS
from equipool.explore.page import PAGE
from equipool.report import Section, Table
from equipool.report.figures import STEPS, WIDTH, label_axes, panels
from equipool.report.page import write_sections
from equipool.training.artifacts import Picture
from equipool.training.progress import Progress

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
    table = ScreenTable(title="Median of 100 numbers")
    for position, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if position else "left")
    for row in rows(study.results):
        table.add_row(*row)
    console.print(table)
    console.print(about_curves(study.results))
    pictures = {
        "learning-curves": draw_learning_curves(study.results),
        "energy": draw_energy(study.paths, study.kinds, study.error_by_step),
        "landscape": draw_landscape(study.landscape),
    }
    for name, png in pictures.items():
        (out / f"{name}.png").write_bytes(png)
    page = out / "index.html"
    title = "The median of 100 numbers, by equilibrium and by sum pooling"
    sections = make_sections(study, plan, *pictures.values())
    write_sections(title, introduction(study, plan), sections, page)
    explorer = out / "explorer.html"
    copyfile(PAGE, explorer)
    console.print(f"Open this page in a browser: {page.resolve()}", soft_wrap=True)
    console.print(f"Drag points, and see their energy: {explorer.resolve()}", soft_wrap=True)
    return page


def introduction(study: Study, plan: Plan) -> list[str]:
    """What was trained, and which network was better."""
    budget = f"Both were trained for {plan.steps or 0:,} steps; the table has the time."
    if plan.steps is None:
        budget = (
            f"Both were trained for about {plan.seconds:g} seconds. Sum pooling was also trained "
            "for as many steps as equilibrium, in less time. The learning rate always falls to "
            "zero at the end."
        )
    task = (
        "The task: given 100 numbers from a uniform, gamma or normal distribution, predict their "
        "median. Equilibrium Aggregation searches for the vector y that minimises a learned energy "
        f"of the set, R(y) + Σ F(x, y), with {plan.inner_steps} steps of gradient descent. Sum "
        "pooling adds up learned embeddings of the numbers, divided by 100. The same small network "
        "turns either result into a prediction."
    )
    return [task, f"{budget} {about_curves(study.results)}"]


def make_sections(
    study: Study, plan: Plan, curves: bytes, energy: bytes, landscape: bytes
) -> list[Section]:
    """The page after its introduction, with the pictures."""
    about_errors = (
        f"The test error is the mean squared error on {plan.test_sets:,} new sets. The ratio "
        f"compares it with {study.results[0].name}: above 1 is worse. This is one seed of small "
        "networks after a short training, with settings chosen in a few trials on this task, more "
        "of them for equilibrium: a demonstration, not a benchmark."
    )
    about_batches = (
        "Every batch is new, so its error before the step estimates the error on new sets. Drawn "
        "are averages over parts of the training. A step of equilibrium takes longer."
    )
    about_steps = (
        f"The layer was trained with {study.paths.trained_steps} inner steps; here the search "
        f"continues to {study.paths.num_steps}. {about_energy(study.paths, study.error_by_step)}"
    )
    about_plane = (
        f"The energy of one set of uniform numbers, on a plane in the {plan.channels}-dimensional "
        "space of y, with the path of the search from its learned start. The plane is the one "
        f"closest to the path: it holds {study.landscape.share:.1%} of the path's squared distance "
        "from its end."
    )
    results = Table("results", HEADINGS, tuple(rows(study.results)))
    settings = Table("settings", ("setting", "value"), tuple(make_settings(study, plan).items()))
    by_steps = "Error against training steps and against seconds, for each network"
    by_inner = "Energy of single sets, and error of the prediction, against inner steps"
    contours = "Contour lines of the energy with the path of y from start to end"
    return [
        Section("Results", [about_errors], [results]),
        Section("Learning curves", [about_batches], pictures=[Picture(by_steps, curves)]),
        Section("The energy along the inner steps", [about_steps],
                pictures=[Picture(by_inner, energy)]),
        Section("The energy landscape", [about_plane], pictures=[Picture(contours, landscape)]),
        Section("Settings", tables=[settings]),
    ]  # fmt: skip


def rows(results: list[Result]) -> list[tuple[str, ...]]:
    """A line for each network; ratios are to the error of the first."""
    return [
        (r.name, f"{r.parameters:,}", f"{r.steps:,}", f"{r.seconds:.1f}", f"{r.error:.2e}",
         f"{r.error / results[0].error:.2f}")
        for r in results
    ]  # fmt: skip


def make_settings(study: Study, plan: Plan) -> dict[str, str]:
    """The settings of the run, for the end of the page."""
    layer: Any = study.layer
    learned = {
        "step size": layer.solver.learning_rate,
        "momentum": layer.solver.momentum,
        "regulariser's weight": layer.regularizer.weight,
    }
    config = plan.config(study.results[0].steps)
    budget = f"{plan.steps:,} steps" if plan.steps else f"about {plan.seconds:g} seconds"
    machine = hardware(torch.device("cpu"))
    return {
        "seed": str(plan.seed),
        "budget": f"{budget} for each network",
        "sizes": f"width {plan.width}, pooled vector {plan.channels}, {plan.inner_steps} inner "
        f"steps, {plan.batch_size} sets per training step",
        "training": f"Adam, learning rate {config.learning_rate:g}, warm-up, {config.schedule}, "
        f"gradient norm clipped at {config.clip_norm:g}",
        "learned": ", ".join(f"{name} {value.item():.3f}" for name, value in learned.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads",
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
            f": its mean squared error is {three_digits(ratio)} times as large. The network "
            "learned a short path downhill, not the lowest point."
        )
    elif ratio < 1 / SAME:
        found = "better than"
        more = f": its mean squared error is {three_digits(1 / ratio)} times lower."
    return f"{falls} {beginning} is {found} after the {trained} steps of the training{more}"


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


def draw_learning_curves(results: list[Result]) -> bytes:
    """Error during training, against steps and against seconds."""
    with panels(1, 2, WIDTH, 4.2) as (axes, content):
        by_step, by_second = axes[0]
        for result, (color, line) in zip(results, STYLES, strict=False):
            ends, errors = bin_means(result.losses, max(2, min(40, result.steps // 10)))
            seconds = ends * (result.seconds / result.steps)
            for ax, position in ((by_step, ends), (by_second, seconds)):
                ax.plot(position, errors, line, color=color, label=result.name, linewidth=2)
                ax.plot(position[-1], errors[-1], "o", color=color, markersize=6)
                ax.set_yscale("log")
        by_step.set_xscale("log")
        label_axes(by_step, "by training steps", STEPS, "mean squared error")
        by_step.xaxis.set_minor_formatter(ticker.NullFormatter())
        label_axes(by_second, "by seconds of training", "seconds")
        by_second.sharey(by_step)
        if by_step.get_ylim()[0] < GUESSING / 2:
            by_step.set_ylim(top=GUESSING)
        by_second.legend(fontsize=10, frameon=False)
    return content.getvalue()


def draw_energy(paths: Paths, kinds: Tensor, errors: Tensor) -> bytes:
    """Energy of a few sets along the inner steps, `kinds [B]` their distributions, and the error of
    the prediction after each step, `errors [S + 1]`."""
    trained = paths.trained_steps
    with panels(1, 2, WIDTH, 4.2) as (axes, content):
        energy, error = axes[0]
        for set_, kind in enumerate(kinds.tolist()):
            first = set_ == kinds.tolist().index(kind)
            name = f"a set of {DISTRIBUTIONS[kind]} numbers" if first else None
            energy.plot(paths.energy[:, set_], color=SET_COLORS[kind], linewidth=1.6, label=name)
        error.plot(errors, color="black", linewidth=1.8)
        error.plot(trained, errors[trained], "o", color="black")
        label_axes(energy, "energy of six sets", "inner step", "energy")
        label_axes(error, "error of the prediction", "inner step", "mean squared error")
        for ax in (energy, error):
            ax.set_yscale("log")
            ax.axvline(trained, color=GREY, linestyle="--", linewidth=1)
            ax.annotate(
                f" trained with\n {trained} steps", (trained, 0.98),
                xycoords=("data", "axes fraction"), va="top", fontsize=10, color=GREY,
            )  # fmt: skip
        energy.legend(fontsize=10, frameon=False, loc="upper right")
    return content.getvalue()


def draw_landscape(landscape: Landscape) -> bytes:
    """Contour lines of the energy, with the path of y."""
    trained = landscape.trained_steps
    with panels(1, 1, 7.4, 6) as (axes, content):
        ax = axes[0, 0]
        energy = landscape.energy.clamp(min=torch.finfo(torch.float32).tiny)
        low, high = float(energy.min().log10()), float(energy.max().log10()) + 1e-6
        levels = torch.logspace(low, high, 24).tolist()
        plane = landscape.horizontal, landscape.vertical, energy
        filled = ax.contourf(*plane, levels=levels, norm=LogNorm(), cmap="cividis")
        ax.contour(*plane, levels=levels, colors="white", linewidths=0.4, alpha=0.5)
        horizontal, vertical = landscape.path.unbind(-1)
        last = len(horizontal) - 1
        ax.plot(horizontal, vertical, "-", color="white", linewidth=1.4)
        ax.plot(horizontal[: trained + 1], vertical[: trained + 1], ".", color="white", ms=9)
        for step, marker, size, name in (
            (0, "s", 10, "start"),
            (trained, "o", 10, f"after {trained} steps, as trained"),
            (last, "*", 16, f"after {last} steps"),
        ):
            ax.plot(
                horizontal[step], vertical[step], marker, ms=size, color="#E69F00",
                markeredgecolor="black", linestyle="none", label=name,
            )  # fmt: skip
        ax.grid(False)
        ax.set_aspect("equal")
        title = "energy of one set around the path of y"
        label_axes(ax, title, "first direction", "second direction")
        bar = ax.figure.colorbar(filled, ax=ax, shrink=0.85, label="energy")
        bar.ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        bar.ax.minorticks_off()
        ax.legend(fontsize=10, loc="upper right", framealpha=0.9)
    return content.getvalue()
