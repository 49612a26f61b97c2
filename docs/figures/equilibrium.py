"""Tables and picture of equilibrium.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from drawing import legend_below, picture, styles
from records import Run, ran_on, read_measurement, read_runs
from tables import MEBIBYTE, columns, spread, table

PAGE = "equilibrium.md"
# The metric of each task, and how it is written.
METRICS = {
    "jets": ("test_auc", ".4f"),
    "median": ("mse", ".1e"),
    "omniglot": ("test_accuracy", ".3f"),
    "molhiv-gin": ("test_roc_auc", ".4f"),
    "molhiv-gcn": ("test_roc_auc", ".4f"),
}
DRAWN = ("jets", "median")
COMPARED = 10  # steps, of recipes that draw their number; the others at the number they train with

Recipes = Mapping[str, Sequence[Run]]


def recipes(runs: Sequence[Run]) -> Recipes:
    """The runs that were evaluated over steps by recipe, the plain one first."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.label != "plain", run.name)):
        if run.over_steps:
            found.setdefault(run.label, []).append(run)
    return found


def evaluations(run: Run) -> dict[int, dict[str, Any]]:
    """By number of steps, of the checkpoint with more of them."""
    most = max(run.over_steps.values(), key=lambda found: len(found["num_steps"]))
    rows = zip(*most.values(), strict=True)
    return {row[0]: dict(zip(most, row, strict=True)) for row in rows}


def at(runs: Sequence[Run], steps: int, name: str) -> list[float]:
    """A number of each run that was evaluated with so many steps."""
    found = (evaluations(run).get(steps) for run in runs)
    return [row[name] for row in found if row and row[name] is not None]


def over_steps(found: Recipes, metric: str, form: str) -> str:
    """The metric of each recipe over the number of steps: means over the seeds."""
    steps = sorted({n for runs in found.values() for run in runs for n in evaluations(run)})

    def mean(recipe: str, number: int) -> str:
        values = at(found[recipe], number, metric)
        return format(statistics.fmean(values), form) if values else "-"

    return columns(found, {
        "recipe": str,
        "seeds": lambda recipe: str(len(found[recipe])),
        **{f"{n:,}": lambda recipe, n=n: mean(recipe, n) for n in steps},
    })  # fmt: skip


def convergence(found: Recipes, metric: str, form: str) -> str:
    """The metric at the steps that a recipe trains with and at most steps, whether the search has
    converged there, and the spread of the predictions from random starts."""
    rows = []
    for recipe, runs in found.items():
        drawn = runs[0].fields["inner_steps"]
        trained = drawn if isinstance(drawn, int) else COMPARED
        most = max(n for run in runs for n in evaluations(run))
        starts = [
            value
            for run in runs
            for checkpoint in run.over_steps.values()
            for value in checkpoint.get("spread", ())
            if value is not None
        ]
        rows.append((
            recipe,
            str(trained),
            spread(at(runs, trained, metric), lambda value: format(value, form)),
            f"{most:,}",
            spread(at(runs, most, metric), lambda value: format(value, form)),
            f"{statistics.median(at(runs, most, 'residual')):.1e}",
            f"{statistics.median(at(runs, most, 'residual_99')):.1e}",
            f"{statistics.fmean(at(runs, most, 'converged')):.1%}",
            f"{statistics.fmean(starts):.1e}" if starts else "-",
        ))  # fmt: skip
    headings = ("recipe", "steps", metric, "most steps", f"{metric} there",
                "residual", "99 % of the sets", "converged", "random starts")  # fmt: skip
    return table(headings, rows)


def rival(runs: Sequence[Run]) -> str:
    """A sentence about the run of attention pooling."""
    (run,) = (run for run in runs if run.label == "attention")
    return f"Attention pooling, trained for as many steps: {run.last('mse'):.1e} (1 seed)."


def choices(variants: Mapping[str, Mapping[str, Any]]) -> str:
    """The area of each variant of the recipe over the number of steps, and its convergence."""
    steps = list(variants["plain"]["valid_auc"])
    return columns(variants.items(), {
        "change": lambda item: item[0],
        **{n: lambda item, n=n: f"{item[1]['valid_auc'][n]:.4f}" for n in steps},
        "residual, 99 %": lambda item: f"{item[1]['residual_99']:.1e}",
        "converged": lambda item: f"{item[1]['converged']:.1%}",
    })  # fmt: skip


def implicit(runs: Sequence[Mapping[str, Any]]) -> str:
    """Error and cost of each gradient, by network and number of inner steps."""
    rows = (
        {"network": run["fields"].get("dataset", run["task"]), "steps": steps} | row
        for run in runs
        for steps, comparison in run["steps"].items()
        for row in comparison["rows"]
    )
    return columns(rows, {
        "network": lambda row: row["network"],
        "steps": lambda row: row["steps"],
        "gradient": lambda row: row["method"],
        "converged": lambda row: f"{row['converged']:.0%}",
        "fell back": lambda row: "-" if row["fallback"] is None else f"{row['fallback']:.0%}",
        "error": lambda row: f"{row['parameters']['relative_error']:.1e}",
        "error of x": lambda row: f"{row['x']['relative_error']:.1e}",
        "ms": lambda row: f"{1000 * row['seconds']['median']:.0f}",
        "MiB": lambda row: f"{row['peak_bytes'] / MEBIBYTE:.0f}",
    })  # fmt: skip


def costs(seconds: Mapping[str, Mapping[str, float]]) -> str:
    """Processor milliseconds of a training step, by number of inner steps, and their mean: the
    recipe draws these numbers equally often."""
    return columns(seconds.items(), {
        "gradients": lambda item: item[0],
        **{
            f"{n} steps": lambda item, n=n: f"{1000 * item[1][n]:.0f}" for n in seconds["unrolled"]
        },
        "mean": lambda item: f"{1000 * statistics.fmean(item[1].values()):.0f}",
    })  # fmt: skip


def blocks() -> dict[str, str]:
    runs = read_runs("equilibrium")
    found = {
        "ran_on": ran_on([run for name in METRICS for run in runs[name]]),
        "attention": rival(runs["median"]),
        "choices": choices(read_measurement("cpu-recipe-choices")[0]["variants"]),
        "implicit": implicit(read_measurement("cpu-implicit")[1]["runs"]),
        "costs": costs(read_measurement("cpu-recipes")[0]["seconds"]),
    }
    for name, (metric, form) in METRICS.items():
        own = recipes(runs[name])
        found[name.replace("-", "_")] = over_steps(own, metric, form)
        found[f"{name.replace('-', '_')}_convergence"] = convergence(own, metric, form)
    return found


def draw() -> None:
    """The metric of two tasks, and the residual, over the number of steps: a line for each run."""
    runs = read_runs("equilibrium")
    drawn = styles([name for task in DRAWN for name in recipes(runs[task])])
    with picture("equilibrium-over-steps", len(DRAWN), 2, (9, 6.4)) as axes:
        for row, task in zip(axes, DRAWN, strict=True):
            metric = METRICS[task][0]
            for recipe, own in recipes(runs[task]).items():
                for run in own:
                    found = evaluations(run)
                    for ax, name in zip(row, (metric, "residual"), strict=True):
                        ax.plot(list(found), [one[name] for one in found.values()], **drawn[recipe])
            for ax, name in zip(row, (metric, "residual, median"), strict=True):
                ax.set(title=f"{task}: {name}", xlabel="inner steps in evaluation", xscale="log")
                ax.set_yscale("linear" if name == "test_auc" else "log")
        legend_below(axes, drawn)
