"""Tables and figures of the page about counting characters, reproduction/omniglot.md.

    python docs/figures/omniglot.py                   # tables and figures, from records/
    python docs/figures/omniglot.py --data-dir DIR    # example sets as well, from the data

Reads these folders of records/:
    omniglot: the experiment
    omniglot-speed: solo runs with its settings, which measure what a step costs
    omniglot-pilot: the runs that learning rates were chosen by, some of them stopped early
    omniglot-settings: smaller networks, in each of which something was changed
    omniglot-quick: runs of the quick preset
    omniglot-examination: what `equipool evaluate RUN --which last` stored of one run

Prints the tables and puts them into the page.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from changed_settings import Changed, changed_groups
from omniglot_figures import draw_curves, draw_examination, draw_sets
from page_tables import group_by, ran_on, read_folder, refresh_page, span
from step_times import check_solo_runs, solo_seconds, with_solo_times

from equipool.experiments.data import using_data_folder
from equipool.experiments.omniglot.evaluation import confusion_title
from equipool.report import RunResult, Table
from equipool.report.groups import Group, mean_of
from equipool.training.artifacts import Examination, read_examination

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "reproduction" / "omniglot.md"
RECORDS = FIGURES.parents[1] / "records"

TEST, TRAIN, VALIDATION = "test_accuracy", "train_accuracy", "validation_accuracy"
LEVELS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
OFF = ("two or more too few", "one too few", "right", "one too many", "two or more too many")


def grouped(runs: Sequence[RunResult]) -> list[Group]:
    """The runs of each method, best first."""
    groups = group_by(runs, ("aggregation",))
    return sorted(groups, key=lambda group: accuracy(group, TEST), reverse=True)


def accuracy(group: Group, metric: str) -> float:
    """Mean at the end; orders groups."""
    mean = mean_of(group.final_values(metric))
    return -1.0 if mean is None else mean


def percent(values: Sequence[float | None]) -> str:
    """Mean and standard deviation (n - 1) of shares, in percent."""
    mean = mean_of(values)
    if mean is None:
        return "not finite"
    finite = [value for value in values if value is not None]
    deviation = f" ± {100 * statistics.stdev(finite):.1f}" if len(finite) > 1 else ""
    return f"{100 * mean:.1f}{deviation} %"


def results(groups: Sequence[Group]) -> Table:
    """Accuracies at the end and at the best validation accuracy."""
    headings = (
        "method", "learning rate", "seeds", "test", "train",
        "test, best validation", "train, best validation", "validation, best",
    )  # fmt: skip
    return Table("results", headings, tuple(_result(group) for group in groups))


def _result(group: Group) -> tuple[str, ...]:
    return (
        group.method,
        f"{group.runs[0].config['training']['learning_rate']:g}",
        str(len(group.runs)),
        *(percent(group.final_values(metric)) for metric in (TEST, TRAIN)),
        *(percent(group.selected_values(metric)) for metric in (TEST, TRAIN, VALIDATION)),
    )


def costs(groups: Sequence[Group]) -> Table:
    """The cost of each method, and whether anything went wrong."""
    headings = (
        "method", "sets seen", "training seconds", "parameters", "spikes", "skipped"
    )  # fmt: skip
    return Table("costs", headings, tuple(_cost(group) for group in groups))


def _cost(group: Group) -> tuple[str, ...]:
    runs = group.runs
    return (
        group.method,
        span([run.curve[-1]["step"] * batch_size(run) for run in runs]),
        f"{statistics.fmean(run.training_seconds for run in runs):,.0f}",
        f"{runs[0].num_parameters:,}",
        str(sum(run.spikes for run in runs)),
        str(sum(run.skipped for run in runs)),
    )


def batch_size(run: RunResult) -> int:
    return int(run.config["fields"]["batch_size"])


def times(groups: Sequence[Group]) -> Table:
    """Training seconds to the first evaluation with each level of test accuracy that some method
    reached; `-` if not all of its runs did."""
    rows = {group.method: [seconds_to(group, level) for level in LEVELS] for group in groups}
    reached = [i for i in range(len(LEVELS)) if any(row[i] is not None for row in rows.values())]
    headings = ("method", *(f"{100 * LEVELS[i]:.0f} %" for i in reached))
    return Table(
        "times",
        headings,
        tuple((m, *(_seconds_text(row[i]) for i in reached)) for m, row in rows.items()),
    )


def _seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f}"


def seconds_to(group: Group, level: float) -> float | None:
    """Mean over the runs; None if one did not reach it."""
    return mean_of([_first(run, level) for run in group.runs])


def _first(run: RunResult, level: float) -> float | None:
    for entry in run.curve:
        value = run.value(entry, TEST)
        if value is not None and value >= level:
            return float(entry["training_seconds"])
    return None


def by_number(groups: Sequence[Group]) -> Table:
    """Percent of right answers by the true number of characters, at the best validation accuracy
    and at the end; means over the runs."""
    numbers = range(1, int(groups[0].runs[0].config["fields"]["max_classes"]) + 1)
    rows = [
        (group.method, when, *(_share(values(f"{TEST}_{number}")) for number in numbers))
        for group in groups
        for when, values in (
            ("best validation", group.selected_values),
            ("last step", group.final_values),
        )
    ]
    return Table("by number", ("method", "when", *map(str, numbers)), tuple(rows))


def _share(values: Sequence[float | None]) -> str:
    mean = mean_of(values)
    return "-" if mean is None else f"{100 * mean:.1f}"


def throughput(solo: Sequence[RunResult]) -> Table:
    """The speed of each solo run, and the steps over which it was measured."""
    headings = (
        "method",
        "batch size",
        "precision",
        "timed steps",
        "ms per step",
        "sets per second",
    )
    ordered = sorted(solo, key=lambda run: (batch_size(run), seconds_per_step(run)))
    return Table("throughput", headings, tuple(_speed(run) for run in ordered))


def _speed(run: RunResult) -> tuple[str, ...]:
    seconds = seconds_per_step(run)
    return (
        str(run.config["fields"]["aggregation"]),
        f"{batch_size(run):,}",
        str(run.config["training"]["precision"]),
        f"{steps_before(run) + 1:,} to {run.curve[-1]['step']:,}",
        f"{1000 * seconds:.2f}",
        f"{batch_size(run) / seconds:,.0f}",
    )


def seconds_per_step(run: RunResult) -> float:
    """Of a solo run."""
    found = solo_seconds(run, [run])
    assert found is not None
    return found


def steps_before(run: RunResult) -> int:
    """Steps that are not timed: those before the first evaluation, unless there is only one."""
    return int(run.curve[0]["step"]) if len(run.curve) > 1 else 0


def settings(runs: Sequence[RunResult]) -> Table:
    """Accuracies of shorter runs at their last evaluation, each method's best first."""
    headings = ("what was changed", "learning rate", "seeds", "steps", "validation accuracy",
                "test accuracy", "train accuracy")  # fmt: skip
    found = changed_groups(runs)
    best: dict[str, float] = {}
    for one in found:
        name = one.group.settings["aggregation"]
        best[name] = max(best.get(name, -1.0), accuracy(one.group, VALIDATION))

    def place(one: Changed) -> tuple[float, float]:
        return best[one.group.settings["aggregation"]], accuracy(one.group, VALIDATION)

    return Table("settings", headings, tuple(map(_tried, sorted(found, key=place, reverse=True))))


def _tried(changed: Changed) -> tuple[str, ...]:
    runs = changed.group.runs
    return (
        changed.name("learning_rate"),
        f"{runs[0].config['training']['learning_rate']:g}",
        str(len(runs)),
        span([run.curve[-1]["step"] for run in runs]),
        *(percent(changed.group.final_values(metric)) for metric in (VALIDATION, TEST, TRAIN)),
    )


def quick(runs: Sequence[RunResult]) -> Table:
    """Accuracies of the quick preset at the end, and the whole time of a run."""
    headings = ("method", "steps", "batch size", "test accuracy", "train accuracy", "seconds")
    rows = [
        (
            group.method,
            span([run.curve[-1]["step"] for run in group.runs]),
            span([batch_size(run) for run in group.runs]),
            percent(group.final_values(TEST)),
            percent(group.final_values(TRAIN)),
            span([round(run.seconds) for run in group.runs]),
        )
        for group in grouped(runs)
    ]
    return Table("quick", headings, tuple(rows))


def miscounts(found: Examination) -> Table:
    """By how much the answers of a network are off, in percent of all sets."""
    headings = ("sets of", *OFF)
    rows = [
        (f"{part} characters", *_off(table))
        for part in ("validation", "test")
        for table in found.tables
        if table.title == confusion_title(part)
    ]
    return Table("miscounts", headings, tuple(rows))


def _off(table: Table) -> list[str]:
    """From a confusion matrix, whose rows are shares of the sets of a true number."""
    counts = dict.fromkeys(range(-2, 3), 0.0)
    for true, (_, *shares, sets) in enumerate(table.rows):
        for answer, share in enumerate(shares):
            counts[max(-2, min(2, answer - true))] += float(share) * int(sets)
    return [f"{100 * count / sum(counts.values()):.1f} %" for count in counts.values()]


def tables(
    runs: Sequence[RunResult],
    solo: Sequence[RunResult],
    pilots: Sequence[RunResult],
    tried: Sequence[RunResult],
    quickly: Sequence[RunResult],
    examined: Examination,
) -> dict[str, Table | str]:
    """All tables of the page, by name."""
    check_solo_runs(runs, solo)
    groups = grouped(with_solo_times(runs, solo))
    return {
        "ran_on": ran_on(runs),
        "results": results(groups),
        "costs": costs(groups),
        "times": times(groups),
        "by_number": by_number(groups),
        "throughput": throughput(solo),
        "pilot": settings(pilots),
        "settings": settings(tried),
        "quick": quick(quickly),
        "miscounts": miscounts(examined),
    }


def read() -> dict[str, Any]:
    """The arguments of `tables`."""
    folders = {
        "runs": "", "solo": "-speed", "pilots": "-pilot", "tried": "-settings", "quickly": "-quick"
    }  # fmt: skip
    found = {name: read_folder(RECORDS / f"omniglot{end}") for name, end in folders.items()}
    return found | {"examined": read_examination(RECORDS / "omniglot-examination")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="draw example sets from the data in this folder")
    chosen = parser.parse_args()
    given = read()
    runs, examined = given["runs"], given["examined"]
    found = tables(**given) if runs else {}  # may raise: before anything is written
    if chosen.data_dir is not None:
        with using_data_folder(chosen.data_dir):
            draw_sets(FIGURES / "omniglot-sets.png")
    if examined:
        draw_examination(examined, FIGURES)
    if not runs:
        print("there are no records of the task")
        return
    draw_curves(grouped(with_solo_times(runs, given["solo"])), FIGURES / "omniglot-curves.svg")
    refresh_page(PAGE, found)


if __name__ == "__main__":
    main()
