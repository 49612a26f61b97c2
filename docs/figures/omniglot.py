"""Tables and pictures of reproduction/omniglot.md.

`equipool evaluate RUN` wrote the pictures of sets, omniglot-sets.png and omniglot-wrong.png.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from drawing import draw_curves, legend_below, picture, styles
from matplotlib.ticker import PercentFormatter
from records import RECORDS, Run, group, ran_on, read_lines, read_runs, seconds_per_step, total
from tables import columns, span, table
from tables import spread as spread_of

PAGE = "reproduction/omniglot.md"
TEST, TRAIN, VALIDATION = "test_accuracy", "train_accuracy", "validation_accuracy"
LEVELS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
OFF = ("two or more too few", "one too few", "right", "one too many", "two or more too many")
NUMBERS = range(1, 11)  # of characters


def last(runs: Sequence[Run], metric: str) -> list[float]:
    return [run.last(metric) for run in runs]


def selected(runs: Sequence[Run], metric: str) -> list[float]:
    """At each run's best validation accuracy."""
    return [run.selected(metric, VALIDATION) for run in runs]


def accuracy(runs: Sequence[Run], metric: str) -> float:
    return statistics.fmean(last(runs, metric))


def percent(shares: Sequence[float]) -> str:
    return f"{spread_of(shares, lambda share: f'{100 * share:.1f}')} %"


def methods(runs: Sequence[Run]) -> list[list[Run]]:
    """Best first."""
    groups = group(runs, lambda run: run.label).values()
    return sorted(groups, key=lambda some: accuracy(some, TEST), reverse=True)


def rate(runs: Sequence[Run]) -> str:
    return f"{runs[0].config['training']['learning_rate']:g}"


def batch_size(run: Run) -> int:
    return run.fields["batch_size"]


def label(runs: Sequence[Run]) -> str:
    return runs[0].label


def steps(runs: Sequence[Run]) -> str:
    return span([run.last_step for run in runs])


def results(groups: Sequence[Sequence[Run]]) -> str:
    return columns(groups, {
        "method": label,
        "learning rate": rate,
        "seeds": lambda g: str(len(g)),
        "test": lambda g: percent(last(g, TEST)),
        "train": lambda g: percent(last(g, TRAIN)),
        "test, best validation": lambda g: percent(selected(g, TEST)),
        "train, best validation": lambda g: percent(selected(g, TRAIN)),
        "validation, best": lambda g: percent(selected(g, VALIDATION)),
    })  # fmt: skip


def costs(groups: Sequence[Sequence[Run]]) -> str:
    return columns(groups, {
        "method": label,
        "sets seen": lambda g: span([run.last_step * batch_size(run) for run in g]),
        "training seconds": lambda g: f"{statistics.fmean(r.training_seconds for r in g):,.0f}",
        "parameters": lambda g: f"{g[0].num_parameters:,}",
        "spikes": lambda g: total(g, "spikes"),
        "skipped": lambda g: total(g, "skipped"),
    })  # fmt: skip


def times(groups: Sequence[Sequence[Run]]) -> str:
    """Training seconds to the first evaluation with each level of test accuracy that some method
    reached; `-` if not all of its runs did."""

    def seconds_to(run: Run, level: float) -> float | None:
        points = zip(run.curve["training_seconds"], run.curve[TEST], strict=True)
        return next((seconds for seconds, value in points if value >= level), None)

    def cell(runs: Sequence[Run], level: float) -> str:
        found = [seconds_to(run, level) for run in runs]
        return "-" if None in found else f"{statistics.fmean(found):,.0f}"

    reached = [level for level in LEVELS if any(cell(some, level) != "-" for some in groups)]
    return columns(groups, {
        "method": label,
        **{f"{100 * v:.0f} %": lambda g, level=v: cell(g, level) for v in reached},
    })  # fmt: skip


def by_number(groups: Sequence[Sequence[Run]]) -> str:
    """Percent of right answers by the true number of characters; means over the runs."""
    rows = [
        (label(some), when, *(
            f"{100 * statistics.fmean(values(some, f'{TEST}_{number}')):.1f}" for number in NUMBERS
        ))
        for some in groups
        for when, values in (("best validation", selected), ("last step", last))
    ]  # fmt: skip
    return table(("method", "when", *map(str, NUMBERS)), rows)


def throughput(alone: Sequence[Run]) -> str:
    """The speed of each run that had the device to itself, and the steps that were timed: those
    after the first evaluation."""
    ordered = sorted(alone, key=lambda run: (batch_size(run), seconds_per_step(run)))
    return columns(ordered, {
        "method": lambda run: run.label,
        "batch size": lambda run: f"{batch_size(run):,}",
        "precision": lambda run: run.config["training"]["precision"],
        "timed steps": lambda run: f"{run.curve['step'][0] + 1:,} to {run.last_step:,}",
        "ms per step": lambda run: f"{1000 * seconds_per_step(run):.2f}",
        "sets per second": lambda run: f"{batch_size(run) / seconds_per_step(run):,.0f}",
    })  # fmt: skip


def settings(runs: Sequence[Run]) -> str:
    """Accuracies of shorter runs at their last evaluation, each method's best first."""
    groups = group(runs, lambda run: (run.label, rate([run]))).values()

    def method(runs: Sequence[Run]) -> str:
        return label(runs).partition(",")[0]

    best: dict[str, float] = {}
    for some in groups:
        best[method(some)] = max(best.get(method(some), 0), accuracy(some, VALIDATION))
    ordered = sorted(groups, key=lambda g: (best[method(g)], accuracy(g, VALIDATION)), reverse=True)
    return columns(ordered, {
        "what was changed": label,
        "learning rate": rate,
        "seeds": lambda g: str(len(g)),
        "steps": steps,
        "validation accuracy": lambda g: percent(last(g, VALIDATION)),
        "test accuracy": lambda g: percent(last(g, TEST)),
        "train accuracy": lambda g: percent(last(g, TRAIN)),
    })  # fmt: skip


def quick(groups: Sequence[Sequence[Run]]) -> str:
    return columns(groups, {
        "method": label,
        "steps": steps,
        "batch size": lambda g: span([batch_size(run) for run in g]),
        "test accuracy": lambda g: percent(last(g, TEST)),
        "train accuracy": lambda g: percent(last(g, TRAIN)),
        "seconds": lambda g: span([round(run.seconds) for run in g]),
    })  # fmt: skip


def miscounts(confusion: dict[str, dict[str, list]]) -> str:
    """By how much the answers of a network are off, in percent of all sets."""

    def off(shares: Sequence[Sequence[float]], sets: Sequence[int]) -> list[str]:
        counts = dict.fromkeys(range(-2, 3), 0.0)
        for true, row in enumerate(shares):
            for answer, share in enumerate(row):
                counts[max(-2, min(2, answer - true))] += share * sets[true]
        return [f"{100 * count / sum(counts.values()):.1f} %" for count in counts.values()]

    rows = ((f"{part} characters", *off(**found)) for part, found in confusion.items())
    return table(("sets of", *OFF), rows)


def read_confusion() -> dict[str, dict[str, list]]:
    """For validation and test: the shares of the answers to sets of each true number of characters,
    and how many such sets there are."""
    return read_lines(RECORDS / "omniglot-answers.jsonl")[0]["confusion"]


def blocks() -> dict[str, str]:
    runs = read_runs("omniglot")
    groups = methods(runs["main"])
    return {
        "ran_on": ran_on(runs["main"]),
        "results": results(groups),
        "costs": costs(groups),
        "times": times(groups),
        "by_number": by_number(groups),
        "throughput": throughput(runs["speed"]),
        "pilot": settings(runs["pilot"]),
        "settings": settings(runs["settings"]),
        "quick": quick(methods(runs["quick"])),
        "miscounts": miscounts(read_confusion()),
    }


def draw() -> None:
    groups = methods(read_runs("omniglot")["main"])
    drawn = styles([label(some) for some in groups])
    with picture("omniglot-curves", 1, 2, (9, 3.6), sharey=True) as axes:
        for some in groups:
            look = drawn[label(some)] | {"marker": ""}
            draw_curves(axes[0], some, TEST, look | {"linestyle": "-"})
            draw_curves(axes[0], some, TRAIN, look | {"linestyle": "--"})
        axes[0, 0].set(ylim=(0, None), ylabel="right answers: test solid, train dashed")
        axes[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
        for ax in axes[0]:
            ax.axhline(0.1, color="gray", lw=0.8, ls=":")  # guessing
        plain = {name: look | {"marker": "", "linestyle": "-"} for name, look in drawn.items()}
        legend_below(axes, plain)
    shares = read_confusion()["test"]["shares"]
    with picture("omniglot-confusion", 1, 1, (4.6, 4.2)) as axes:
        ax = axes[0, 0]
        ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for true, row in enumerate(shares):
            for answer, share in enumerate(row):
                if share >= 0.0005:
                    color = "white" if share > 0.5 else "black"
                    ax.text(answer, true, f"{100 * share:.1f}", ha="center", va="center",
                            fontsize=7, color=color)  # fmt: skip
        ax.set_xticks(range(10), NUMBERS)
        ax.set_yticks(range(10), NUMBERS)
        ax.set(xlabel="answer", ylabel="true number of characters")
