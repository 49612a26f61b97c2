"""The page: one file, pictures included."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from equipool.extras import check_extras
from equipool.report.groups import Group, common_settings, group_runs, varying_settings
from equipool.report.runs import RunResult
from equipool.report.summary import equal_seconds, number, order_in_words, summaries
from equipool.report.varied import draw_varied, summarize_varied, varied_settings
from equipool.training.artifacts import cell_text
from equipool.training.files import write_atomically

TEMPLATE = Path(__file__).with_name("page.html.j2")
NEEDED = {"report": ("matplotlib", "jinja2")}


def write_page(runs: Sequence[RunResult], file: str | Path) -> None:
    """Write the page of these runs to a file, which needs nothing else."""
    check_extras("the report", NEEDED)
    import jinja2

    groups = group_runs(runs)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(
        task=runs[0].task,
        about=(runs[0].kind.__doc__ or "").split("\n\n")[0],
        monitor=runs[0].kind.monitor,
        summaries=summaries(runs),
        reported=runs[0].kind.reported,
        order=order_in_words(runs).splitlines(),
        seconds=equal_seconds(groups),
        images={name: _embedded(picture) for name, picture in _pictures(groups).items()},
        varied={
            setting: (summarize_varied(runs, setting), _embedded(draw_varied(groups, setting)))
            for setting in varied_settings(groups)
        },
        run_headings=RUN_HEADINGS,
        run_rows=[_run_row(run) for run in runs],
        troubled=[run for run in runs if run.skipped or run.spikes],
        settings={name: str(value) for name, value in common_settings(runs).items()},
        varying=varying_settings(runs),
        examined=[run for run in runs if run.examinations],
        cell_text=cell_text,
        embedded=_embedded,
        versions=_distinct(_of_pieces(runs, "versions")),
        hardware=_distinct(_of_pieces(runs, "hardware")),
    )
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, html.encode())


def _pictures(groups: Sequence[Group]) -> dict[str, bytes]:
    from equipool.report.pictures import (
        draw_curves,
        draw_inner,
        draw_reported,
        draw_sizes,
        inner_lines,
    )

    pictures = {"curves": draw_curves(groups)}
    reported = groups[0].runs[0].kind.reported
    if reported:
        pictures["reported"] = draw_reported(groups, reported)
    if len({group.size for group in groups}) > 1:
        pictures["sizes"] = draw_sizes(groups)
    lines = inner_lines(groups)
    if lines:
        pictures["inner"] = draw_inner(lines)
    return pictures


def _embedded(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode("ascii")


RUN_HEADINGS = (
    "run", "steps", "at the end", "best", "at step", "seconds of training", "pieces",
    "runs at once", "parameters", "skipped", "spikes",
)  # fmt: skip


def _run_row(run: RunResult) -> tuple[str, ...]:
    best = run.best
    return (
        run.name,
        f"{run.steps:,}" + ("" if run.complete else " (unfinished)"),
        number(run.final) if run.curve else "-",
        number(run.value(best)) if best else "-",
        f"{best['step']:,}" if best else "-",
        f"{run.training_seconds:,.1f}",
        str(run.pieces),
        ", ".join(dict.fromkeys(str(piece.get("together", "-")) for piece in run.ran_on)) or "-",
        "-" if run.num_parameters is None else f"{run.num_parameters:,}",
        str(run.skipped),
        str(run.spikes),
    )


def _of_pieces(runs: Sequence[RunResult], name: str) -> list[Mapping[str, object]]:
    return [piece.get(name, {}) for run in runs for piece in run.ran_on]


def _distinct(tables: Sequence[Mapping[str, object]]) -> list[str]:
    """Each once, on a line."""
    told = (", ".join(f"{name} {value}" for name, value in table.items()) for table in tables)
    return [line for line in dict.fromkeys(told) if line]
