"""The report: one HTML file with everything in it, made of sections.

A section is a function that takes the runs and returns a `Section`, or None if there is nothing to
show. `SECTIONS` lists them in the order of the page.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from equipool.files import write_text
from equipool.report import figures
from equipool.report.runs import MEASURED, Runs, number, results

TEMPLATE = Path(__file__).with_name("page.html.j2")


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, a paragraph, a table and PNG pictures."""

    title: str
    text: str
    table: pd.DataFrame | None = None
    pictures: Sequence[bytes] = ()

    @property
    def sources(self) -> list[str]:
        """The pictures as sources of `<img>`."""
        encoded = (base64.b64encode(picture).decode("ascii") for picture in self.pictures)
        return [f"data:image/png;base64,{one}" for one in encoded]


def write_page(runs: Runs, file: str | Path) -> None:
    """Write the report of these runs to an HTML file that needs no other file."""
    import jinja2

    sections = [found for make in SECTIONS if (found := make(runs)) is not None]
    source = TEMPLATE.read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True).from_string(source)
    html = template.render(title=f"Runs of {runs.kind.name}", sections=sections)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    write_text(file, html)


def results_section(runs: Runs) -> Section:
    """Results over the seeds."""
    text = (
        "Means and standard deviations over the runs of a method, of the last evaluations and of "
        "each run's best one. The training time excludes evaluations."
    )
    return Section("Results", text, results(runs), [figures.draw_curves(runs)])


def settings_section(runs: Runs) -> Section | None:
    """The effect of each setting with several numbers."""
    names = figures.varied_numbers(runs)
    if not names:
        return None
    text = "Dots are runs; lines are means of runs that differ in nothing else."
    return Section(
        "By setting", text, pictures=[figures.draw_setting(runs, name) for name in names]
    )


def runs_section(runs: Runs) -> Section:
    """One row per run."""
    monitor, scores = runs.kind.monitor, {"last": runs.last(), "best": runs.best()}
    columns = [found.set_index("run")[monitor].map(number).rename(f"{name} {monitor}")
               for name, found in scores.items()]  # fmt: skip
    shown = pd.concat([*columns, runs.table.set_index("run")[list(MEASURED)]], axis=1)
    return Section("Runs", "One row per run.", shown.reset_index(names="run"))


def common_section(runs: Runs) -> Section:
    """The settings that all runs share, and those in which they differ."""
    varying = runs.varying
    text = "All settings of the run." if len(runs.table) == 1 else "The settings of all runs."
    rows = [(name, runs.table[name].iloc[0]) for name in runs.settings if name not in varying]
    rows += [("machine", one) for one in runs.machines]
    return Section("Settings", text, pd.DataFrame(rows, columns=["setting", "value"]))


# In the order of the page.
SECTIONS: tuple[Callable[[Runs], Section | None], ...] = (
    results_section, settings_section, runs_section, common_section,
)  # fmt: skip
