"""The report: one HTML file with everything in it, made of sections.

A section is a function that takes the runs and returns a list of `Section`, empty if there is
nothing to show. `sections` lists them in the order of the page.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipool.extras import check_extras
from equipool.report.groups import common_settings, group_runs, varying_settings
from equipool.report.runs import RunResult
from equipool.report.tables import (
    Summary,
    best_groups,
    equal_seconds,
    make_table,
    number,
    summaries,
)
from equipool.training.artifacts import Picture, Table, cell_text
from equipool.training.files import write_atomically

TEMPLATE = Path(__file__).with_name("page.html.j2")
NEEDED = {"report": ("matplotlib", "jinja2")}


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, paragraphs of plain text, tables, and PNG images."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Summary | Table] = ()
    pictures: Sequence[Picture] = ()
    gallery: bool = False  # small pictures side by side, with their captions
    folded: Sequence[Section] = ()  # parts that the reader can open and close


def sections() -> list[Callable[[Sequence[RunResult]], list[Section]]]:
    """The sections of the page, in order. Those in files of their own are imported here because
    they need matplotlib, which is not always installed."""
    from equipool.report.by_setting import by_setting
    from equipool.report.figures import inner_loop, learning_curves, training_loss

    during = [learning_curves, by_setting, training_loss, inner_loop]
    return [results, *during, examinations, all_runs, settings]


def write_page(runs: Sequence[RunResult], file: str | Path) -> None:
    """Write the report of these runs to an HTML file that needs no other file."""
    check_extras("the report", NEEDED)
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(
        task=runs[0].task,
        about=first_sentence(runs[0].kind.__doc__ or ""),
        sections=[section for make in sections() for section in make(runs)],
        cell_text=cell_text,
        embedded=lambda png: "data:image/png;base64," + base64.b64encode(png).decode("ascii"),
    )
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, html.encode())


def first_sentence(text: str) -> str:
    """The first sentence of a docstring. What follows describes defaults, which runs may change."""
    sentence, stop, _ = " ".join(text.replace("`", "").split()).partition(". ")
    return sentence + stop.strip()


def results(runs: Sequence[RunResult]) -> list[Section]:
    """The tables of the monitored metric, best first, and of the task's further metrics."""
    groups = group_runs(runs)
    if not groups:
        return [Section("Results", ["No run has been evaluated yet."])]
    kind, seconds = runs[0].kind, equal_seconds(groups)
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


def examinations(runs: Sequence[RunResult]) -> list[Section]:
    """What `equipool evaluate` stored of each network."""
    folded = []
    for run in runs:
        for which, found in run.examinations.items():
            parts = [Section(table.title, tables=[table]) for table in found.tables]
            parts += [Section(g.title, pictures=g.pictures, gallery=True) for g in found.galleries]
            folded.append(Section(f"{run.name}, {which} checkpoint", folded=parts))
    if not folded:
        return []
    return [Section("Evaluation", ["Stored by equipool evaluate for each network."], folded=folded)]


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
    together = dict.fromkeys(str(piece.get("together", "-")) for piece in run.ran_on)
    return {
        "run": run.name,
        "steps": f"{run.steps:,}" if run.complete else f"{run.steps:,} of {run.planned_steps:,}",
        "last": number(run.final) if run.curve else "-",
        "best": number(run.value(best)) if best else "-",
        "at step": f"{best['step']:,}" if best else "-",
        "training seconds": f"{run.training_seconds:,.1f}",
        "pieces": str(run.pieces),
        "runs at once": ", ".join(together) or "-",
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
    return [Section("Settings", [text], [Summary("settings", ("setting", "value"), tuple(rows))])]
