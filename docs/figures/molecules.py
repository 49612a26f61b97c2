"""Tables and figures of the page about molecules, reproduction/molecules.md.

    python docs/figures/molecules.py

Reads these folders of records/:
    molecules: the experiment on molhiv
    molecules-toxcast, molecules-qm9: the same on other data
    molecules-ablations: a folder for each ablation (steps, aux-weight, capacity); aux-weight has
        run directories, whose logs have the statistics of the inner loops
    molecules-speed: solo runs, which measure what an epoch costs
    molecules-dropout: networks of the experiment's size, with changes against overfitting
    molecules-quick: the same for small networks

Prints the tables for which there are records and puts them into the page. The paper's numbers, from
its table and its appendix, are beside ours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changed_settings import Changed, changed_groups
from page_tables import group_by, ran_on, read_folder, refresh_page, span
from step_times import solo_seconds, with_solo_times, without_solo_run

from equipool.cli.sweep import STUDIES
from equipool.experiments.molecules.labels import usual_measure
from equipool.experiments.registry import MoleculeTask
from equipool.report import RunResult, Table
from equipool.report.by_setting import draw_setting, lines_of
from equipool.report.figures import Style, add_legend, label_axes, panels, styles
from equipool.report.groups import Group, group_runs, mean_curve, mean_of
from equipool.report.tables import number
from equipool.training import read_record
from equipool.training.folder import RunFolder

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "reproduction" / "molecules.md"
RECORDS = FIGURES.parents[1] / "records"

FOLDERS = {
    "results": "molecules",
    "toxcast": "molecules-toxcast",
    "qm9": "molecules-qm9",
    "dropout": "molecules-dropout",
    "quick": "molecules-quick",
}
CHANGED = ("dropout", "quick")  # tables of what was changed
VARIED = {name: study.varied for name, study in STUDIES[MoleculeTask.name].items()}
FIELDS = ("convolution", "aggregation", "local_aggregation")
PLAIN = ("equilibrium", "sum")  # readout and messages
DRAWN = (PLAIN, ("mean", "sum"), ("sum", "sum"))  # in the curves' picture
READOUT = "readout.aggregation"  # the layer
PARTS = {"valid": "-", "test": "--"}  # of the data, and their dashes
# The paper's average precision on MOLPCBA. Of its table that of the test part, by network, readout
# and messages; its last row, 0.258 for equilibrium aggregation of both, names no network.
PAPER_RESULTS: dict[tuple[str, ...], float] = {
    ("GCN", "sum", "sum"): 0.203,
    ("GCN", "attention", "sum"): 0.229,
    ("GCN", "pna", "sum"): 0.209,
    ("GCN", "equilibrium", "sum"): 0.252,
    ("GIN", "sum", "sum"): 0.232,
    ("GIN", "attention", "sum"): 0.234,
    ("GIN", "pna", "sum"): 0.244,
    ("GIN", "equilibrium", "sum"): 0.246,
}
# Of its ablations that of the validation part, by the varied value.
PAPER_ABLATIONS = {
    "steps": {"1": 0.235, "2": 0.257, "5": 0.263, "10": 0.268},
    "aux-weight": {"0.0001": 0.250, "0.001": 0.261, "0.01": 0.257, "0.1": 0.254, "1.0": 0.263},
    "capacity": {
        "[60, 30, 3]": 0.208,
        "[180, 90, 10]": 0.218,
        "[360, 180, 19]": 0.228,
        "[600, 300, 32]": 0.233,
        "[780, 390, 42]": 0.222,
    },
}
# Hours of 2 million steps, by the number of inner steps; 0: a sum.
PAPER_HOURS = {0: 5 + 30 / 60, 2: 7 + 50 / 60, 5: 10 + 8 / 60, 10: 15 + 44 / 60}
WORDS = {
    "roc_auc": "ROC-AUC",
    "average_precision": "average precision",
    "mae": "mean absolute error",
}


@dataclass(frozen=True)
class Cost:
    """The cost of an epoch.

    Args:
        training: molecules of the training part, by data set.
        solo: runs that had the device to themselves.
    """

    training: Mapping[str, int]
    solo: Sequence[RunResult]

    def steps(self, run: RunResult) -> int:
        """Steps of an epoch of full batches. Few are smaller, because of large molecules."""
        fields = run.config["fields"]
        molecules = min(self.training[fields["dataset"]], fields["train_limit"] or math.inf)
        return math.ceil(molecules / fields["batch_size"])

    def epochs(self, run: RunResult) -> int:
        """Epochs before the last evaluation."""
        return round(run.curve[-1]["step"] / self.steps(run))

    def seconds(self, run: RunResult) -> float | None:
        """Seconds of an epoch without other runs on the device; None if there is no solo run."""
        step = solo_seconds(run, self.solo)
        return None if step is None else step * self.steps(run)


def training_molecules(folders: Iterable[Path]) -> dict[str, int]:
    """The number of training molecules by data set, from the records in these folders."""
    found: dict[str, int] = {}
    for config in (config for folder in folders for config in _configs(folder)):
        dataset, number = config["fields"]["dataset"], config["data"]["molecules"]["train"]
        if found.setdefault(dataset, number) != number:
            raise ValueError(
                f"{dataset} has {found[dataset]} molecules to train on in one record and {number} "
                "in another, expected the same"
            )
    return found


def _configs(path: Path) -> Iterator[dict[str, Any]]:
    """Configs of the runs in a folder and below, with `data`, which a `RunResult` does not have."""
    if path.is_dir() and RunFolder(path).config.exists():
        yield RunFolder(path).read_config()
    elif path.is_dir():
        for inside in sorted(path.iterdir()):
            yield from _configs(inside)
    elif path.suffix == ".json":
        yield read_record(path).config


def results(runs: Sequence[RunResult], cost: Cost) -> Table:
    """The methods of each network, best first by the test score at the best validation score."""
    groups = sorted(group_by(runs, FIELDS), key=lambda group: (_names(group)[0], -_score(group)))
    rows = ((*_names(group), *_measured(group, cost)) for group in groups)
    headings = ("network", "readout", "messages", *_measured_headings(groups))
    return Table("results", headings, tuple(rows))


def beside_the_paper(table: Table, heading: str, scores: Sequence[float | None]) -> Table:
    """The table with a last column of the paper's numbers."""
    cells = ("-" if score is None else f"{score:.3f}" for score in scores)
    rows = ((*row, score) for row, score in zip(table.rows, cells, strict=True))
    return Table(table.title, (*table.headings, heading), tuple(rows))


def _score(group: Group) -> float:
    """Orders groups: the mean test score at the best validation score."""
    score = mean_of(group.selected_values("test_score"))
    return -math.inf if score is None else score


def _names(group: Group) -> tuple[str, str, str]:
    fields = _fields(group)
    return fields["convolution"].upper(), group.method, fields["local_aggregation"]


def _fields(group: Group) -> dict[str, str]:
    fields: dict[str, str] = group.runs[0].config["fields"]
    return fields


def ablation(runs: Sequence[RunResult], setting: str, cost: Cost) -> Table:
    """The same for each value of a setting, in the order of the values; if there are logs, also how
    far the searches come."""
    groups = group_runs(runs, [setting])
    logged = all(run.points for run in runs)
    rows = (
        (
            *("-" if line.constant and name == setting else str(value)
              for name, value in group.settings.items()),
            *_measured(group, cost),
            *(_searched(group) if logged else ()),
        )
        for line in lines_of(groups, setting)
        for group in line.groups
    )  # fmt: skip
    names = (name.replace("_", " ") for name in groups[0].settings)
    searched = ("largest gradient", "auxiliary loss") if logged else ()
    return Table(setting, (*names, *_measured_headings(groups), *searched), tuple(rows))


def _searched(group: Group) -> tuple[str, str]:
    """Means over the seeds: the largest component of a gradient at the end of a search in the last
    logged batch, and the auxiliary loss of the last epoch."""
    points = [_last_logged(run) for run in group.runs]
    if None in points:  # without a search
        return "-", "-"
    return (
        number(mean_of([point["inner"][READOUT].get("residual_max") for point in points])),
        number(mean_of([point["metrics"]["readout_aux_loss"] for point in points])),
    )


def _last_logged(run: RunResult) -> Any:
    """The last log entry with statistics of the inner loops."""
    return next((point for point in reversed(run.points) if point.get("inner")), None)


def time(runs: Sequence[RunResult], cost: Cost) -> Table:
    """The cost of inner steps compared with a sum, here and in the paper."""
    seconds = {_inner_steps(run): cost.seconds(run) for run in runs}
    both = {steps: (seconds.get(steps), hours) for steps, hours in PAPER_HOURS.items()}
    sums = both[0]
    rows = (
        (
            f"equilibrium, {steps} inner steps" if steps else "sum",
            *(text for own, of_sum in zip(costs, sums, strict=True) for text in _over(own, of_sum)),
        )
        for steps, costs in both.items()
    )
    headings = ("readout", "seconds per epoch", "/ sum", "paper, hours of 2 million steps", "/ sum")
    return Table("time", headings, tuple(rows))


def _inner_steps(run: RunResult) -> int:
    """0 if there is no search."""
    fields = run.config["fields"]
    return fields["inner_steps"] if fields["aggregation"] == "equilibrium" else 0


def _over(value: float | None, other: float | None) -> tuple[str, str]:
    """A number, and its ratio to the other."""
    if value is None:
        return "-", "-"
    return number(value), "-" if other is None else number(value / other)


def tried(runs: Sequence[RunResult], cost: Cost) -> Table:
    """Scores with one setting or another changed, the best of each network first."""
    networks: dict[str, list[RunResult]] = {}
    for run in runs:
        networks.setdefault(run.config["fields"]["convolution"], []).append(run)
    found = [changed for _, some in sorted(networks.items()) for changed in _best_first(some)]
    rows = (
        (_names(changed.group)[0], changed.name(), *_measured(changed.group, cost)[:-1])
        for changed in found
    )
    headings = _measured_headings([changed.group for changed in found])[:-1]  # without the seconds
    return Table("tried", ("network", "what was changed", *headings), tuple(rows))


def _best_first(runs: Sequence[RunResult]) -> list[Changed]:
    return sorted(changed_groups(runs), key=lambda changed: -_score(changed.group))


def _measured_headings(groups: Sequence[Group]) -> tuple[str, ...]:
    word = WORDS[measure(groups[0])]
    return (
        "seeds", "epochs", f"best validation {word}", f"test {word} there",
        f"test {word} at the end", "parameters", "seconds per epoch",
    )  # fmt: skip


def _measured(group: Group, cost: Cost) -> tuple[str, ...]:
    name, run = measure(group), group.runs[0]
    seconds = cost.seconds(run)
    return (
        str(len(group.runs)),
        span([cost.epochs(run) for run in group.runs]),
        score_text(group.selected_values(f"valid_{name}")),
        score_text(group.selected_values(f"test_{name}")),
        score_text(group.final_values(f"test_{name}")),
        f"{run.num_parameters:,}",
        "-" if seconds is None else number(seconds),
    )


def measure(group: Group) -> str:
    """Name of the metric that the score is."""
    numbers = "valid_mae" in group.runs[0].curve[-1]["metrics"]
    return "mae" if numbers else usual_measure(_fields(group)["dataset"])


def score_text(values: Sequence[float | None]) -> str:
    """Mean and standard deviation over the seeds, as OGB's leaderboard writes them."""
    mean = mean_of(values)
    if mean is None:
        return "not finite"
    finite = [value for value in values if value is not None]
    return f"{mean:.4f}" + (f" ± {statistics.stdev(finite):.4f}" if len(finite) > 1 else "")


def draw_epochs(runs: Sequence[RunResult], cost: Cost) -> bytes:
    """The score and the loss against epochs, of the validation part solid and of the test part
    dashed: means over the seeds. One row per network."""
    groups = group_by([run for run in runs if _drawn(run)], FIELDS)
    networks = sorted({_names(group)[0] for group in groups})
    colors = styles([group.method for group in groups])
    drawn = {
        f"{method}, {part}": Style(colors[method].color, dashes, "")
        for method in colors
        for part, dashes in PARTS.items()
    }
    with panels(len(networks), 2, 10, 3.4 * len(networks) + 0.6) as (axes, content):
        for row, network in zip(axes, networks, strict=True):
            same = [group for group in groups if _names(group)[0] == network]
            for ax, name in zip(row, (measure(same[0]), "loss"), strict=True):
                for group in same:
                    for part in PARTS:
                        mean = mean_curve(
                            [run.metric_curve(f"{part}_{name}") for run in group.runs]
                        )
                        epochs = [point.step / cost.steps(group.runs[0]) for point in mean]
                        line = drawn[f"{group.method}, {part}"].line(len(mean))
                        ax.plot(epochs, [point.mean for point in mean], **line)
                label_axes(ax, f"{network}: {WORDS.get(name, name)}", "epochs", "")
        add_legend(axes[0, 0], drawn)
    return content.getvalue()


def _drawn(run: RunResult) -> bool:
    return _poolings(run) in DRAWN


def _poolings(run: RunResult) -> tuple[str, str]:
    """The aggregation of the readout and that of the messages."""
    fields = run.config["fields"]
    return fields["aggregation"], fields["local_aggregation"]


def tables(
    runs: Mapping[str, Sequence[RunResult]],
    ablations: Mapping[str, Sequence[RunResult]],
    cost: Cost,
) -> dict[str, Table | str]:
    """All tables of the page for which there are runs, and the hardware of molhiv's, by name."""
    found: dict[str, Table | str] = {"ran_on": ran_on(runs["results"])}
    for name, some in runs.items():
        if some:
            found[name] = (tried if name in CHANGED else results)(some, cost)
    if isinstance(table := found.get("results"), Table):
        found["results"] = beside_the_paper(
            table, "paper, test on MOLPCBA", [PAPER_RESULTS.get(row[:3]) for row in table.rows]
        )
    for name, some in ablations.items():
        if some:
            table, scores = ablation(some, VARIED[name], cost), PAPER_ABLATIONS[name]
            at = table.headings.index(VARIED[name].replace("_", " "))
            found[name.replace("-", "_")] = beside_the_paper(
                table, "paper, validation on MOLPCBA", [scores.get(row[at]) for row in table.rows]
            )
    if ablations.get("steps"):
        found["time"] = time(ablations["steps"], cost)
    return found


def pictures(
    runs: Sequence[RunResult], ablations: Mapping[str, Sequence[RunResult]], cost: Cost
) -> dict[str, bytes]:
    """All figures of the page for which there are runs, by name. That of an ablation shows times,
    so it needs solo runs for all its runs."""
    found = {"epochs": draw_epochs(runs, cost)} if any(map(_drawn, runs)) else {}
    for name, some in ablations.items():
        setting = VARIED[name]
        if some and not without_solo_run(some, cost.solo):
            found[name] = draw_setting(
                group_runs(with_solo_times(some, cost.solo), [setting]), setting
            )
    return found


def read() -> tuple[dict[str, list[RunResult]], dict[str, list[RunResult]], Cost]:
    """The runs of each table, those of each ablation, and their cost."""
    runs = {name: read_folder(RECORDS / folder) for name, folder in FOLDERS.items()}
    if runs["dropout"]:
        plain = [run for run in runs["results"] if _poolings(run) == PLAIN]
        runs["dropout"] = [*plain, *runs["dropout"]]  # the usual one first
    ablations = {name: read_folder(RECORDS / "molecules-ablations" / name) for name in VARIED}
    training = training_molecules(RECORDS.glob("molecules*"))
    return runs, ablations, Cost(training, read_folder(RECORDS / "molecules-speed"))


def main() -> None:
    runs, ablations, cost = read()
    refresh_page(PAGE, tables(runs, ablations, cost))
    for name, picture in pictures(runs["results"], ablations, cost).items():
        (FIGURES / f"molecules-{name}.png").write_bytes(picture)


if __name__ == "__main__":
    main()
