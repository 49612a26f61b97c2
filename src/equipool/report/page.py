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
from equipool.report.groups import CHANGED, common_settings, group_runs, shorten, varying_settings
from equipool.report.runs import RunResult
from equipool.report.tables import Summary, best_groups, equal_seconds, number, summarize
from equipool.training.artifacts import Picture, Table, cell_text
from equipool.training.checkpoint import write_atomically

TEMPLATE = Path(__file__).with_name("page.html.j2")
NEEDED = {"report": ("matplotlib", "jinja2")}


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        title: its heading.
        text: paragraphs, plain text.
        tables: shown below the text.
        pictures: PNG images, shown below the tables.
        gallery: whether the pictures are small and shown side by side, with their captions.
        folded: parts that the reader can open and close.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Summary | Table] = ()
    pictures: Sequence[Picture] = ()
    gallery: bool = False
    folded: Sequence[Section] = ()


def sections() -> list[Callable[[Sequence[RunResult]], list[Section]]]:
    """The sections of the page, in order. Those in files of their own are imported here because
    they need matplotlib, which is not always installed."""
    from equipool.report.by_setting import by_setting
    from equipool.report.curves import further_metrics, inner_loop, learning_curves, training_loss

    return [
        results,
        learning_curves,
        further_metrics,
        by_setting,
        training_loss,
        inner_loop,
        examinations,
        all_runs,
        settings,
    ]


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
        embedded=_embedded,
    )
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, html.encode())


def first_sentence(text: str) -> str:
    """The first sentence of a docstring. What follows describes defaults, which runs may change.

    Example:
        >>> first_sentence("Learn the median\\n    of 3.5 numbers. Sizes are the paper's.")
        'Learn the median of 3.5 numbers.'
    """
    sentence, stop, _ = " ".join(text.replace("`", "").split()).partition(". ")
    return sentence + stop.strip()


def _embedded(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def results(runs: Sequence[RunResult]) -> list[Section]:
    """The table of the monitored metric, best first."""
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
    shown = shorten(groups)[0].settings
    hidden = [name for name in groups[0].settings if name not in shown and CHANGED not in shown]
    if hidden:
        text += f" Not listed: {_listed(hidden)}, which depend on the settings that are."
    best = [f"{line}." for line in best_groups(runs)]
    return [Section("Results", [*best, text], [summarize(runs)])]


def examinations(runs: Sequence[RunResult]) -> list[Section]:
    """What `equipool evaluate` stored of each network."""
    folded = []
    for run in runs:
        for which, found in run.examinations.items():
            galleries = [Section(one.title, pictures=one.pictures, gallery=True)
                         for one in found.galleries]  # fmt: skip
            tables = [Section(table.title, tables=[table]) for table in found.tables]
            parts = [*tables, *galleries]
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
    rows = [_run_row(run) for run in runs]
    table = Summary("runs", tuple(rows[0]), tuple(tuple(row.values()) for row in rows))
    return [Section("Runs", [text], [table])]


def _run_row(run: RunResult) -> dict[str, str]:
    best = run.best
    together = dict.fromkeys(str(piece.get("together", "-")) for piece in run.ran_on)
    return {
        "run": run.name,
        "steps": run.progress,
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
        text += f" The runs differ in {_listed(varying)}."
    rows = [(name, str(value)) for name, value in common_settings(runs).items()]
    for name in ("versions", "hardware"):
        rows += [(name, line) for line in _distinct(runs, name)]
    return [Section("Settings", [text], [Summary("settings", ("setting", "value"), tuple(rows))])]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _distinct(runs: Sequence[RunResult], name: str) -> list[str]:
    """The different versions, or hardware, of all pieces of the runs; one line each."""
    found = (piece.get(name, {}) for run in runs for piece in run.ran_on)
    lines = (", ".join(f"{key} {value}" for key, value in one.items()) for one in found)
    return [line for line in dict.fromkeys(lines) if line]
