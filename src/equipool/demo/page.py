"""What the user sees: progress bars, a table, pictures, and a page that explains them.

Sentences about results are made from the numbers, so that the page says what was measured.
"""

from __future__ import annotations

import base64
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import jinja2
import torch
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from torch import Tensor

import equipool
from equipool.demo.pictures import draw_energy, draw_landscape, draw_learning_curves
from equipool.demo.study import Landscape, Paths, Plan, Result, Study, run_study
from equipool.training.progress import Progress

TEMPLATE = Path(__file__).with_name("page.html.j2")
HEADINGS = ("network", "parameters", "steps", "seconds", "test error", "ratio")
SAME = 1.1  # errors within this factor are called the same


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
        TextColumn("{task.description:<25}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[error]:>13}"),
        TimeRemainingColumn(compact=True),
    )
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
        (
            result.name,
            f"{result.parameters:,}",
            f"{result.steps:,}",
            f"{result.seconds:.1f}",
            f"{result.error:.2e}",
            f"{result.error / results[0].error:.2f}",
        )
        for result in results
    ]


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
        if other.steps == first.steps:
            sentences.append(compare(first, other, f"After {first.steps:,} steps each"))
        else:
            steps = f"{first.steps:,} and {other.steps:,} steps"
            sentences.append(compare(first, other, f"After about equal time ({steps})"))
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
    if ratio > SAME:
        return (
            f"{falls} {beginning} is worse than after the {trained} steps of the training: its "
            f"mean squared error is {_number(ratio)} times as large. The network "
            "learned a short path downhill, not the lowest point."
        )
    if ratio < 1 / SAME:
        return (
            f"{falls} {beginning} is better than after the {trained} steps of the training: its "
            f"mean squared error is {_number(1 / ratio)} times lower."
        )
    return f"{falls} {beginning} is about as good as after the {trained} steps of the training."


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
