"""Tables and figure of the page about convergence, equilibrium.md.

    python docs/figures/equilibrium.py

Reads the run directories in records/equilibrium-TASK, named RECIPE-seed-N, with what `equipool
evaluate RUN --over-steps ...` stored in them, and what benchmarks/recipes.py, recipe_choices.py and
implicit.py measured. Prints the tables and puts them into the page.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from page_tables import ran_on, read_folder, refresh_page

from equipool.comparison.result import MEBIBYTE
from equipool.report import RunResult, Table
from equipool.report.figures import add_legend, label_axes, panels, styles
from equipool.training import AtSteps

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "equilibrium.md"
RECORDS = FIGURES.parents[1] / "records"
BENCHMARKS = FIGURES.parents[1] / "benchmarks"
COSTS = BENCHMARKS / "records" / "cpu-recipes.json"
CHOICES = BENCHMARKS / "records" / "cpu-recipe-choices.json"
IMPLICIT = BENCHMARKS / "records" / "cpu-implicit.json"
sys.path.append(str(BENCHMARKS))

from recipes import recipe_cost  # noqa: E402

PLAIN = "plain"


class Subject(NamedTuple):
    """Runs of several recipes on one task."""

    name: str
    metric: str
    form: str  # of the metric in tables
    runs: list[RunResult]


# By the folder's name.
METRICS = {
    "jets": ("test_auc", ".4f"),
    "median": ("mse", ".1e"),
    "omniglot": ("test_accuracy", ".3f"),
    "molhiv-gin": ("test_roc_auc", ".4f"),
    "molhiv-gcn": ("test_roc_auc", ".4f"),
}
DRAWN = ("jets", "median")
COMPARED = 10  # steps, of recipes that draw their number; the others at the number they train with


def by_recipe(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """The runs of each recipe that have been evaluated over steps, the plain one first."""
    found: dict[str, list[RunResult]] = {}
    for run in sorted(runs, key=lambda run: (not run.name.startswith(PLAIN), run.name)):
        if run.over_steps:
            found.setdefault(run.name.rpartition("-seed-")[0], []).append(run)
    return found


def rows_of(run: RunResult) -> list[AtSteps]:
    """The evaluations of a run over steps, of the checkpoint with more of them."""
    return list(max(run.over_steps.values(), key=len))


def at(run: RunResult, number: int) -> AtSteps | None:
    """The evaluation with so many steps."""
    return next((row for row in rows_of(run) if row.num_steps == number), None)


def numbers(runs: Sequence[RunResult]) -> list[int]:
    """All numbers of steps that some run was evaluated with."""
    return sorted({row.num_steps for run in runs for row in rows_of(run)})


def values(runs: Sequence[RunResult], number: int, metric: str) -> list[float]:
    """The metric of each run with so many steps."""
    found = (at(run, number) for run in runs)
    return [float("nan" if (v := row.metrics[metric]) is None else v) for row in found if row]


def over_steps(runs: Sequence[RunResult], metric: str, form: str) -> Table:
    """The metric of each recipe over the number of steps: means over the seeds."""
    steps = numbers([run for run in runs if run.over_steps])
    rows = []
    for recipe, own in by_recipe(runs).items():
        found = [values(own, number, metric) for number in steps]
        means = (format(statistics.fmean(some), form) if some else "-" for some in found)
        rows.append((recipe, str(len(own)), *means))
    return Table(metric, ("recipe", "seeds", *(f"{number:,}" for number in steps)), tuple(rows))


def convergence(runs: Sequence[RunResult], metric: str, form: str) -> Table:
    """For each recipe: the metric at the steps that it trains with and at most steps, mean and
    deviation over the seeds, whether the search has converged there, and the spread of the
    predictions from random starts."""
    rows = []
    for recipe, own in by_recipe(runs).items():
        trained, most = trained_steps(own[0]), numbers(own)[-1]
        last = [row for run in own if (row := at(run, most))]
        rows.append((
            recipe, f"{trained}", _spread(values(own, trained, metric), form),
            f"{most:,}", _spread(values(own, most, metric), form),
            _middle([row.residual for row in last]), _middle([row.residual_99 for row in last]),
            f"{statistics.fmean(row.converged for row in last):.1%}", _starts(own),
        ))  # fmt: skip
    headings = (
        "recipe", "steps", metric, "most steps", f"{metric} there",
        "residual", "99 % of the sets", "converged", "random starts",
    )  # fmt: skip
    return Table("convergence", headings, tuple(rows))


def trained_steps(run: RunResult) -> int:
    """The number of steps that a run was trained with."""
    steps = run.config["fields"]["inner_steps"]
    return steps if isinstance(steps, int) else COMPARED


def _starts(runs: Sequence[RunResult]) -> str:
    """The mean over the runs that were evaluated from random starts."""
    rows = (row for run in runs for found in run.over_steps.values() for row in found)
    spreads = [row.spread for row in rows if row.spread is not None]
    return f"{statistics.fmean(spreads):.1e}" if spreads else "-"


def rival(runs: Sequence[RunResult], metric: str, form: str) -> str:
    """A sentence about the runs of attention pooling."""
    last = [run.curve[-1]["metrics"][metric] for run in runs if run.name.startswith("attention")]
    seeds = "1 seed" if len(last) == 1 else f"{len(last)} seeds"
    return f"Attention pooling, trained for as many steps: {_spread(last, form)} ({seeds})."


def choices(variants: Mapping[str, Mapping[str, Any]]) -> Table:
    """The area of each variant of the recipe over the number of steps, and its convergence."""
    steps = list(next(iter(variants.values()))["valid_auc"])
    rows = []
    for name, found in variants.items():
        areas = (f"{found['valid_auc'][number]:.4f}" for number in steps)
        rows.append((name, *areas, f"{found['residual_99']:.1e}", f"{found['converged']:.1%}"))
    return Table("choices", ("change", *steps, "residual, 99 %", "converged"), tuple(rows))


def implicit(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Error and cost of each gradient, by network and number of inner steps."""
    rows = []
    for run in runs:
        network = run["fields"].get("dataset", run["task"])
        for steps, comparison in run["steps"].items():
            for found in comparison["rows"]:
                row = (network, steps, found["method"], f"{found['converged']:.0%}")
                fell_back = "-" if found["fallback"] is None else f"{found['fallback']:.0%}"
                errors = (f"{found[name]['relative_error']:.1e}" for name in ("parameters", "x"))
                seconds, peak = found["seconds"]["median"], found["peak_bytes"] / MEBIBYTE
                rows.append((*row, fell_back, *errors, f"{1000 * seconds:.0f}", f"{peak:.0f}"))
    headings = (
        "network", "steps", "gradient", "converged", "fell back", "error", "error of x",
        "ms", "MiB",
    )  # fmt: skip
    return Table("implicit", headings, tuple(rows))


def costs(seconds: Mapping[str, Mapping[str, float]]) -> Table:
    """Processor milliseconds of a training step, by number of inner steps, and their mean over
    those that the recipe draws."""
    numbers_ = list(seconds["unrolled"])
    rows = []
    for name, values_ in seconds.items():
        mean = f"{1000 * recipe_cost(values_):.0f}"
        rows.append((name, *(f"{1000 * values_[number]:.0f}" for number in numbers_), mean))
    return Table("costs", ("gradients", *(f"{n} steps" for n in numbers_), "mean"), tuple(rows))


def _spread(found: Sequence[float], form: str) -> str:
    if not found:
        return "-"
    deviation = f" ± {format(statistics.stdev(found), form)}" if len(found) > 1 else ""
    return format(statistics.fmean(found), form) + deviation


def _middle(found: Sequence[float | None]) -> str:
    """The median over the seeds."""
    finite = [value for value in found if value is not None]
    return f"{statistics.median(finite):.1e}" if finite else "-"


def draw(subjects: Sequence[Subject]) -> bytes:
    """The metric of each task, and the residual, over the number of steps: one line per run."""
    names = list(dict.fromkeys(name for one in subjects for name in by_recipe(one.runs)))
    drawn = styles(names)
    with panels(len(subjects), 2, 10, 3.2 * len(subjects) + 0.6) as (axes, content):
        for row, (title, metric, form, runs) in zip(axes, subjects, strict=True):
            for recipe, own in by_recipe(runs).items():
                for run in own:
                    found = rows_of(run)
                    steps, line = [one.num_steps for one in found], drawn[recipe].line(len(found))
                    row[0].plot(steps, [one.metrics[metric] for one in found], **line)
                    row[1].plot(steps, [one.residual for one in found], **line)
            for ax, name in zip(row, (metric, "residual, median"), strict=True):
                ax.set_xscale("log")
                if name != metric or form.endswith("e"):
                    ax.set_yscale("log")
                label_axes(ax, f"{title}: {name}", "inner steps in evaluation", "")
        add_legend(axes[0, 0], drawn)
    return content.getvalue()


def tables(
    subjects: Sequence[Subject],
    seconds: Mapping[str, Mapping[str, float]],
    variants: Mapping[str, Mapping[str, Any]],
    compared: Sequence[Mapping[str, Any]],
) -> dict[str, Table | str]:
    """All tables of the page, by name."""
    found: dict[str, Table | str] = {
        "ran_on": ran_on([run for one in subjects for run in one.runs]),
        "choices": choices(variants),
        "implicit": implicit(compared),
        "costs": costs(seconds),
    }
    for name, metric, form, runs in subjects:
        block = name.replace("-", "_")
        found[block] = over_steps(runs, metric, form)
        found[f"{block}_convergence"] = convergence(runs, metric, form)
        if name == "median":
            found["attention"] = rival(runs, metric, form)
    return found


def read() -> tuple[list[Subject], Any, Any, Any]:
    """The arguments of `tables`."""
    subjects = [
        Subject(name, *of_task, read_folder(RECORDS / f"equilibrium-{name}"))
        for name, of_task in METRICS.items()
    ]
    files = (COSTS, CHOICES, IMPLICIT)
    timed, varied, compared = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return subjects, timed["seconds"], varied["variants"], compared["runs"]


def main() -> None:
    found = read()
    refresh_page(PAGE, tables(*found))
    picture = draw([one for one in found[0] if one.name in DRAWN])
    (FIGURES / "equilibrium-over-steps.png").write_bytes(picture)


if __name__ == "__main__":
    main()
