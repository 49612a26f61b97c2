"""The table of results in the README."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from records import Run, read_runs
from tables import table

PAGE = "../README.md"


def row(
    what: str, runs: Sequence[Run], score: Callable[[Run], float], form: str, rival: str
) -> list[str]:
    """The mean score of each method; that of equilibrium aggregation is bold."""

    def cell(label: str) -> str:
        mean = statistics.fmean(score(run) for run in runs if run.label == label)
        return format(mean, form).replace("%", " %")

    other = f"{rival}, {cell(rival.lower().replace(' ', '-'))}" if rival else "not run"
    return [what, cell("sum"), cell("attention"), other, f"**{cell('equilibrium')}**"]


def blocks() -> dict[str, str]:
    median, omniglot, molecules = (
        read_runs(name)["main"] for name in ("median", "omniglot", "molecules")
    )
    gcn = [
        run
        for run in molecules
        if (run.fields["convolution"], run.fields["local_aggregation"]) == ("gcn", "sum")
    ]
    headings = ("experiment", "sum", "attention", "best other rival", "equilibrium")
    rows = [
        row(
            "[median](docs/reproduction/median.md) of 100 numbers, mean squared error",
            median, lambda run: run.last("mse"), ".1e", "",
        ),
        row(
            "[counting](docs/reproduction/omniglot.md) handwritten characters, test accuracy",
            omniglot, lambda run: run.selected("test_accuracy", "validation_accuracy"), ".1%",
            "Set Transformer",
        ),
        row(
            "[molhiv](docs/reproduction/molecules.md) molecules, GCN, test ROC-AUC",
            gcn, lambda run: run.selected("test_roc_auc", "valid_score"), ".4f", "mean",
        ),
    ]  # fmt: skip
    return {"experiments": table(headings, rows)}
