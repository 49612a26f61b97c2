"""Tables and pictures of reproduction/median.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from drawing import draw_curves, legend_below, picture, styles
from records import RECORDS, Run, group, ran_on, read_lines, read_runs, total
from tables import columns, number, span, spread, table

PAGE = "reproduction/median.md"
DISTRIBUTIONS = ("uniform", "gamma", "normal")
SHOWN_STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 20)  # of the search

# Statistics of the inner search: heading, and whether on a logarithmic axis.
INNER = {
    "residual": ("final gradient, max-norm", True),
    "aux_loss": ("auxiliary loss", True),
    "learning_rate": ("inner step size", False),
    "momentum": ("inner momentum", False),
    "regularizer_weight": ("weight of the regulariser", False),
    "converged": ("share of converged sets", False),
}


def errors(runs: Sequence[Run], metric: str = "mse") -> list[float]:
    """At the end of each run."""
    return [run.last(metric) for run in runs]


def mean_error(runs: Sequence[Run]) -> float:
    return statistics.fmean(errors(runs))


def size(runs: Sequence[Run]) -> int:
    return runs[0].fields["embedding"]


def methods(runs: Sequence[Run]) -> list[list[Run]]:
    """By size, the best first."""
    groups = group(runs, lambda run: (run.label, run.fields["embedding"])).values()
    return sorted(groups, key=lambda some: (size(some), mean_error(some)))


def results(runs: Sequence[Run]) -> str:
    """Mean squared errors after the last step, compared with the best of the other methods."""
    groups = methods(runs)

    def over_rivals(runs: Sequence[Run], error: Callable[[Sequence[Run]], float]) -> str:
        rivals = [g for g in groups if size(g) == size(runs) and g[0].label != runs[0].label]
        return f"{error(runs) / min(map(error, rivals)):.3g}"

    def best(runs: Sequence[Run]) -> float:
        return min(errors(runs))

    return columns(groups, {
        "D": lambda g: str(size(g)),
        "method": lambda g: g[0].label,
        "seeds": lambda g: str(len(g)),
        "steps": lambda g: span([run.last_step for run in g]),
        "mean squared error": lambda g: spread(errors(g)),
        "/ best rival's": lambda g: over_rivals(g, mean_error),
        "best seed": lambda g: number(best(g)),
        "/ best rival's best": lambda g: over_rivals(g, best),
        **{
            name: lambda g, name=name: number(statistics.fmean(errors(g, f"mse_{name}")))
            for name in DISTRIBUTIONS
        },
        "parameters": lambda g: f"{g[0].num_parameters:,}",
        "spikes": lambda g: total(g, "spikes"),
        "skipped": lambda g: total(g, "skipped"),
    })  # fmt: skip


def seconds(runs: Sequence[Run]) -> str:
    """Errors after equal training times: those that the methods take, and half of the shortest."""
    groups = methods(runs)
    whole = sorted({max(run.training_seconds for run in some) for some in groups})

    def after(runs: Sequence[Run], moment: float) -> str:
        at = [sum(t <= moment for t in run.curve["training_seconds"]) - 1 for run in runs]
        found = [run.curve["mse"][i] for run, i in zip(runs, at, strict=True)]
        steps = span([run.curve["step"][i] for run, i in zip(runs, at, strict=True)])
        return f"{number(statistics.fmean(found))} (step {steps})"

    return columns(groups, {
        "D": lambda g: str(size(g)),
        "method": lambda g: g[0].label,
        "ms per step": lambda g: f"{1e3 * g[0].training_seconds / g[0].steps:.3g}",
        **{
            f"after {moment:,.0f} s": lambda g, moment=moment: after(g, moment)
            for moment in (whole[0] / 2, *whole)
        },
    })  # fmt: skip


def settings(runs: Sequence[Run]) -> str:
    """Errors with one setting or another changed, best first."""
    groups = group(runs, lambda run: run.label)

    def unchanged(runs: Sequence[Run]) -> float:
        return mean_error(groups[runs[0].label.partition(",")[0]])

    return columns(sorted(groups.values(), key=mean_error), {
        "what was changed": lambda g: g[0].label,
        "seeds": lambda g: str(len(g)),
        "steps": lambda g: span([run.last_step for run in g]),
        "mean squared error": lambda g: spread(errors(g)),
        "/ unchanged": lambda g: f"{mean_error(g) / unchanged(g):.3g}",
        "best seed": lambda g: number(min(errors(g))),
        "spikes": lambda g: total(g, "spikes"),
        "skipped": lambda g: total(g, "skipped"),
    })  # fmt: skip


def rates(runs: Sequence[Run], stopped: Sequence[Run]) -> str:
    """Errors of the stopped runs, and those of the experiment's run of the same method and seed."""

    def identity(run: Run) -> tuple[str, int, int]:
        return run.label, run.fields["embedding"], run.seed

    def rate(run: Run) -> float:
        return run.config["training"]["learning_rate"]

    tried = {identity(run) for run in stopped}
    shown = [*(run for run in runs if identity(run) in tried), *stopped]
    steps = sorted({step for run in stopped for step in run.curve["step"]})
    return columns(sorted(shown, key=lambda run: (identity(run), -rate(run))), {
        "method": lambda run: run.label,
        "learning rate": lambda run: f"{rate(run):g}",
        **{
            f"step {step:,}": lambda run, step=step: (
                number(run.curve["mse"][run.curve["step"].index(step)])
                if step in run.curve["step"]
                else "-"
            )
            for step in steps
        },
    })  # fmt: skip


def frozen(networks: Sequence[dict]) -> str:
    """The share of batches that count as spikes while the weights do not change."""
    found = group(networks, lambda one: one["label"])
    shares = {method: [one["spikes"] for one in some] for method, some in found.items()}
    return table(
        ("method", "seeds", "batches that are spikes, by seed"),
        (
            (method, str(len(some)), ", ".join(f"{share:.2%}" for share in some))
            for method, some in sorted(shares.items(), key=lambda item: -max(item[1]))
        ),
    )


def search(networks: Sequence[dict]) -> str:
    """What each step of the search does; the last one of training is bold."""
    found = [one for one in networks if "search" in one]
    trained = {one["config"]["fields"]["inner_steps"] for one in found}
    firsts = [one["search"][0]["gradient"] for one in found]

    def row(step: int) -> tuple[str, ...]:
        path = [one["search"][step] for one in found]
        ratios = [entry["gradient"] / first for entry, first in zip(path, firsts, strict=True)]
        return (
            f"**{step}**" if step in trained else str(step),
            str(len(path)),
            spread([entry["mse"] for entry in path]),
            span([entry["length"] for entry in path], ".2f") if step else "-",
            span([entry["at_limit"] for entry in path], ".0%") if step else "-",
            span(ratios, ".2g"),
        )

    headings = ("inner steps", "seeds", "mean squared error", "length of the step",
                "as long as the limit", "gradient / first one")  # fmt: skip
    return table(headings, map(row, SHOWN_STEPS))


def blocks() -> dict[str, str]:
    runs, networks = read_runs("median"), read_lines(RECORDS / "median-networks.jsonl")
    return {
        "ran_on": ran_on([*runs["main"], *runs["sizes"]]),
        "results": results(runs["main"]),
        "sizes": results(runs["sizes"]),
        "seconds": seconds(runs["main"]),
        "settings": settings(runs["settings"]),
        "rates": rates(runs["main"], runs["rates"]),
        "frozen": frozen(networks),
        "search": search(networks),
    }


def draw() -> None:
    runs = read_runs("median")
    groups = methods(runs["main"])
    drawn = styles([some[0].label for some in groups])
    with picture("median-curves", 1, 2, (9, 3.6), sharey=True) as axes:
        for some in groups:
            draw_curves(axes[0], some, "mse", drawn[some[0].label])
        axes[0, 0].set(yscale="log", ylabel="mean squared error")
        legend_below(axes, drawn)
    (logged,) = runs["inner"]
    with picture("median-inner", 2, 3, (10, 4.6)) as axes:
        for ax, (name, (heading, logarithmic)) in zip(axes.flat, INNER.items(), strict=True):
            ax.plot(logged.inner["step"], logged.inner[name], lw=1)
            ax.set(
                title=heading, xlabel="training steps", yscale="log" if logarithmic else "linear"
            )
