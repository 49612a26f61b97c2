"""The report: one HTML file with everything in it, made of sections.

A section is a function that takes the runs and returns a list of `Section`, empty if there is
nothing to show. `SECTIONS` lists them in the order of the page.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipool.extras import check_extras
from equipool.files import write_text
from equipool.report.artifacts import Picture, Table, cell_text
from equipool.report.by_setting import draw_setting, summarize_setting, varied_settings
from equipool.report.groups import Group, common_settings, group_runs, shorten, varying_settings
from equipool.report.runs import LOSS, RunResult
from equipool.report.tables import best_groups, make_table, number, shared_time, summaries

TEMPLATE = Path(__file__).with_name("page.html.j2")
NEEDED = {"report": ("matplotlib", "jinja2")}


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, paragraphs of plain text, tables, and PNG images."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    folded: Sequence[Section] = ()  # parts that the reader can open and close


def write_page(runs: Sequence[RunResult], file: str | Path) -> None:
    """Write the report of these runs to an HTML file that needs no other file."""
    check_extras("the report", NEEDED)
    about = [first_sentence(runs[0].kind.__doc__ or "")]
    sections = [section for make in SECTIONS for section in make(runs)]
    write_sections(f"Runs of {runs[0].task}", about, sections, Path(file))


def write_sections(
    title: str, about: Sequence[str], sections: Sequence[Section], file: Path
) -> None:
    """Write a page with these paragraphs and sections, and everything in it."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    file.parent.mkdir(parents=True, exist_ok=True)
    html = template.render(
        title=title, about=about, sections=sections, cell_text=cell_text,
        embedded=lambda png: "data:image/png;base64," + base64.b64encode(png).decode("ascii"),
    )  # fmt: skip
    write_text(file, html)


def first_sentence(text: str) -> str:
    """The first sentence of a docstring. What follows describes defaults, which runs may change."""
    sentence, stop, _ = " ".join(text.replace("`", "").split()).partition(". ")
    return sentence + stop.strip()


def results(runs: Sequence[RunResult]) -> list[Section]:
    """The tables of the monitored metric, best first, and of the task's further metrics."""
    groups = group_runs(runs)
    if not groups:
        return [Section("Results", ["No run has been evaluated yet."])]
    kind, seconds = runs[0].kind, shared_time(groups)
    direction = "lower" if kind.lower_is_better else "higher"
    text = (
        f"Each row is a group of runs that differ only in their seed. Groups are compared by "
        f"{kind.monitor} ({direction} is better) and sorted, best first. Mean and standard "
        'deviation (n - 1) are of the last evaluations; "best run" is the last evaluation of the '
        'best run, "best evaluation" the best of all runs at any step, which is how the paper '
        'reports its best seed; "/ best" is the mean divided by the best mean of the same size.'
    )
    if seconds is not None:
        text += (
            " The last column compares at equal training time: each run's last evaluation within "
            f"the {seconds:.3g} seconds that all runs had."
        )
    best = [f"{line}." for line in best_groups(runs)]
    return [Section("Results", [*best, text], summaries(runs))]


def learning_curves(runs: Sequence[RunResult]) -> list[Section]:
    """The monitored metric over the training, and the task's further metrics."""
    groups = shorten(group_runs(runs))
    metrics = [runs[0].kind.monitor, *runs[0].kind.reported]
    shown = [
        m for m in metrics if any(run.value(e, m) is not None for run in runs for e in run.curve)
    ]
    if not shown:
        return []
    text = (
        "Lines are means over the seeds, shaded areas the range between the best and the worst "
        "seed. Left by training steps, right by training time, evaluations excluded: a step takes "
        "longer with some methods. Times compare only between runs on the same device that shared "
        "it with equally many others."
    )
    texts = [text, *_unfinished([run for run in runs if run.curve])]
    return [Section("Learning curves", texts, pictures=[_curves(groups, m) for m in shown])]


def _curves(groups: Sequence[Group], metric: str) -> Picture:
    from equipool.report.figures import draw_curves  # needs matplotlib: not always installed

    return Picture(f"{metric} by training steps and by training time", draw_curves(groups, metric))


def _unfinished(runs: Sequence[RunResult]) -> list[str]:
    open_runs = [run for run in runs if not run.complete]
    names = (f"{run.name} (step {run.steps:,} of {run.planned_steps:,})" for run in open_runs)
    text = f"Thin lines that end in a cross are unfinished runs: {', '.join(names)}."
    return [text] if open_runs else []


def by_setting(runs: Sequence[RunResult]) -> list[Section]:
    """One section for each setting with several values; with at least three if many settings
    vary."""
    groups = group_runs(runs)
    if not groups:
        return []
    text = (
        "Mean and standard deviation over the seeds, of the best evaluation of each run. In the "
        "figure, dots are runs and lines their means."
    )
    found = []
    for setting in varied_settings(groups, least=2 if shorten(groups) == groups else 3):
        caption = f"{runs[0].kind.monitor} and seconds per step by {setting}"
        picture = Picture(caption, draw_setting(groups, setting))
        table = summarize_setting([run for run in runs if run.curve], setting)
        found.append(Section(f"By {setting}", [text], [table], [picture]))
    return found


def training_loss(runs: Sequence[RunResult]) -> list[Section]:
    """The loss from the logs: also of runs that were interrupted before their first evaluation."""
    logged = [run for run in runs if any("loss" in point for point in run.points)]
    if not logged:
        return []
    picture = _curves(shorten(group_runs(logged, evaluated=False)), LOSS)
    text = "The loss of the training batches, from the logs of run directories."
    return [Section("Training loss", [text, *_unfinished(logged)], pictures=[picture])]


def inner_loop(runs: Sequence[RunResult]) -> list[Section]:
    """What the equilibrium layers did during training."""
    from equipool.report.figures import draw_inner, inner_curves

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


def over_steps(runs: Sequence[RunResult]) -> list[Section]:
    """What `equipool evaluate --over-steps` stored of each network."""
    from equipool.report.figures import draw_over_steps

    searched = {
        f"{run.name}, {which}": rows for run in runs for which, rows in run.over_steps.items()
    }
    if not searched:
        return []
    monitor = runs[0].kind.monitor
    text = (
        f"{monitor} and the gradient that is left, over the number of inner steps in evaluation. "
        "If the search has found a minimum, further steps change nothing. The residual is the "
        "largest component of the gradient, as the median over all sets. The spread is the root "
        "mean squared distance between predictions from random starts and their mean."
    )
    picture = Picture(f"{monitor} over inner steps", draw_over_steps(searched, monitor))
    return [Section("Inner steps in evaluation", [text], pictures=[picture])]


def all_runs(runs: Sequence[RunResult]) -> list[Section]:
    """One row per run."""
    troubled = [run.name for run in runs if run.skipped or run.spikes]
    text = (
        "Steps with a gradient that was not finite or far too long were skipped. A spike is a step "
        "whose loss exceeded ten times the median of the steps before. "
    ) + (f"There were some in {', '.join(troubled)}." if troubled else "There were none.")
    return [Section("Runs", [text], [make_table("runs", [_run_row(run) for run in runs])])]


def _run_row(run: RunResult) -> dict[str, str]:
    best = run.best
    return {
        "run": run.name,
        "steps": f"{run.steps:,}" if run.complete else f"{run.steps:,} of {run.planned_steps:,}",
        "last": number(run.value(run.curve[-1])) if run.curve else "-",
        "best": number(run.value(best)) if best else "-",
        "at step": f"{best['step']:,}" if best else "-",
        "training seconds": f"{run.training_seconds:,.1f}",
        "pieces": str(len(run.ran_on)),
        "parameters": "-" if run.num_parameters is None else f"{run.num_parameters:,}",
        "skipped": str(run.skipped),
        "spikes": str(run.spikes),
    }


def settings(runs: Sequence[RunResult]) -> list[Section]:
    """What the runs have in common, and the names of the settings in which they differ."""
    varying = varying_settings(runs)
    text = "All settings of the run." if len(runs) == 1 else "The settings that all runs share."
    if varying:
        text += f" The runs differ in {', '.join(varying)}."
    rows = [(name, str(value)) for name, value in common_settings(runs).items()]
    for name in ("versions", "hardware"):
        pieces = (piece.get(name, {}) for run in runs for piece in run.ran_on)
        lines = (", ".join(f"{key} {value}" for key, value in one.items()) for one in pieces)
        rows += [(name, line) for line in dict.fromkeys(lines) if line]
    return [Section("Settings", [text], [Table("settings", ("setting", "value"), tuple(rows))])]


# In the order of the page.
SECTIONS: tuple[Callable[[Sequence[RunResult]], list[Section]], ...] = (
    results, learning_curves, by_setting, training_loss, inner_loop, over_steps,
    all_runs, settings,
)  # fmt: skip
