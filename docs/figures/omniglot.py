"""Tables and pictures of the page about counting characters.

    python docs/figures/omniglot.py                   # curves and tables, from records/omniglot
    python docs/figures/omniglot.py --data-dir DIR    # example sets as well, from the data

The tables are printed, and put between `<!-- generated: NAME -->` and `<!-- end -->` in
reproduction/omniglot.md, where NAME is results or times.

The experiment is in records/omniglot. Where records/omniglot-speed has a run of the same settings
that had the device to itself, seconds are those of its steps; else each run's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt

from equipool.data import using_data_folder
from equipool.report import RunResult, Summary, markdown, read_runs
from equipool.report.blocks import fill_blocks
from equipool.report.groups import Group, group_runs
from equipool.report.pictures import plot_means
from equipool.report.summary import spread
from equipool.tasks import OmniglotTask
from equipool.tasks.character_pictures import draw_set

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "reproduction" / "omniglot.md"
RECORDS = FIGURES.parents[1] / "records"

TEST, TRAIN = "test_accuracy", "train_accuracy"
LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
STYLE = {
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "equipool",  # the same picture is the same file
}


def timed(runs: Sequence[RunResult], alone: Sequence[RunResult]) -> list[RunResult]:
    """The runs with the seconds that their steps take alone on the device, where a run of the same
    settings tells them."""
    speeds = {_settings(run): run.training_seconds / run.steps for run in alone}
    return [
        _at_speed(run, speeds[_settings(run)]) if _settings(run) in speeds else run for run in runs
    ]


def _settings(run: RunResult) -> str:
    fields = {name: value for name, value in run.config["fields"].items() if name != "seed"}
    return json.dumps([fields, run.config["training"]["precision"]], sort_keys=True)


def _at_speed(run: RunResult, seconds: float) -> RunResult:
    curve = [entry | {"training_seconds": entry["step"] * seconds} for entry in run.curve]
    return replace(run, curve=curve, training_seconds=run.steps * seconds)


def results(groups: Sequence[Group]) -> Summary:
    """Accuracies at the end and where the validation was best, and what they cost."""
    headings = (
        "method", "seeds", "test accuracy", "train accuracy", "test, at the best validation",
        "sets seen", "seconds of training", "sets a second", "parameters", "spikes", "skipped",
    )  # fmt: skip
    return Summary("results", headings, tuple(_result(group) for group in by_test(groups)))


def _result(group: Group) -> tuple[str, ...]:
    runs = group.runs
    seen = [sets_seen(run) for run in runs]
    seconds = [run.training_seconds for run in runs]
    return (
        group.method,
        str(len(runs)),
        spread(group.final_values(TEST)),
        spread(group.final_values(TRAIN)),
        spread(group.selected_values(TEST)),
        " to ".join(f"{number:,}" for number in dict.fromkeys((min(seen), max(seen)))),
        f"{statistics.fmean(seconds):,.0f}",
        f"{sum(seen) / sum(seconds):,.0f}",
        f"{runs[0].num_parameters:,}",
        str(sum(run.spikes for run in runs)),
        str(sum(run.skipped for run in runs)),
    )


def by_test(groups: Sequence[Group]) -> list[Group]:
    """The best first."""

    def mean(group: Group) -> float:
        values = group.final_values(TEST)
        return -1.0 if None in values else statistics.fmean(v for v in values if v is not None)

    return sorted(groups, key=mean, reverse=True)


def sets_seen(run: RunResult) -> int:
    return run.steps * int(run.config["fields"]["batch_size"])


def times(groups: Sequence[Group]) -> Summary:
    """Seconds of training to the first evaluation with a test accuracy of each level that some
    method reached; `-` where not all its runs did."""
    rows = {
        group.method: [seconds_to(group, level) for level in LEVELS] for group in by_test(groups)
    }
    reached = [i for i in range(len(LEVELS)) if any(row[i] is not None for row in rows.values())]
    headings = ("method", *(f"{100 * LEVELS[i]:.0f} %" for i in reached))
    return Summary(
        "times", headings, tuple((m, *(_told(row[i]) for i in reached)) for m, row in rows.items())
    )


def _told(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f}"


def seconds_to(group: Group, level: float) -> float | None:
    """Mean over the runs; None where one did not get there."""
    found = [_first(run, level) for run in group.runs]
    there = [seconds for seconds in found if seconds is not None]
    return statistics.fmean(there) if len(there) == len(found) else None


def _first(run: RunResult, level: float) -> float | None:
    for entry in run.curve:
        value = run.other_value(entry, TEST)
        if value is not None and value >= level:
            return float(entry["training_seconds"])
    return None


TABLES = {"results": results, "times": times}


def refresh(page: str, groups: Sequence[Group]) -> str:
    """The page with its generated blocks made anew."""
    return fill_blocks(page, lambda name: markdown(TABLES[name](groups)))


def draw_curves(groups: Sequence[Group], file: Path) -> None:
    """As in the paper's figure: test accuracy solid and train accuracy dashed, by steps; and by
    seconds."""
    with plt.rc_context(STYLE):
        _, (by_step, by_second) = plt.subplots(1, 2, figsize=(8, 3.4))
        plot_means(by_step, by_second, groups, (TEST, TRAIN))
        by_step.set(xlabel="training steps", ylabel="accuracy", ylim=(0, 1))
        by_second.set(xlabel="seconds of training")
        plt.savefig(file, metadata={"Date": None})
        plt.close()


def draw_sets(file: Path) -> None:
    """A set of each number of test characters, with the number."""
    task = OmniglotTask()
    device = torch.device("cpu")
    data, sets = task.data(device), task.held_out("test", device)
    with plt.rc_context(STYLE):
        _, axes = plt.subplots(5, 2, figsize=(7, 5.2))
        for number, ax in enumerate(axes.T.flat, start=1):
            images = sets.images[int((sets.num_classes == number).nonzero()[0])]
            characters = images // data.pools["test"].drawings
            ax.imshow(draw_set(data.pixels[images], characters).numpy(), interpolation="nearest")
            ax.set_title(f"{number} character{'s' if number > 1 else ''}", loc="left")
            ax.set_axis_off()
        plt.savefig(file, dpi=110, metadata={"Software": None}, pil_kwargs={"optimize": True})
        plt.close()


def read(folder: str) -> list[RunResult]:
    """The runs of a folder of records; none where there is none."""
    files = sorted((RECORDS / folder).glob("*.json"))
    return read_runs(files) if files else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="draw example sets from the data in this folder")
    chosen = parser.parse_args()
    if chosen.data_dir is not None:
        with using_data_folder(chosen.data_dir):
            draw_sets(FIGURES / "omniglot-sets.png")
    groups = group_runs(timed(read("omniglot"), read("omniglot-speed")))
    if not groups:
        print("there are no records of the task")
        return
    draw_curves(groups, FIGURES / "omniglot-curves.svg")
    for table in TABLES.values():
        print(markdown(table(groups)), end="\n\n")
    if PAGE.exists():
        PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8"), groups), encoding="utf-8")


if __name__ == "__main__":
    main()
