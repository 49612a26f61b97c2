"""The table of results in the README."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from records import Run, group, read_runs
from tables import table

PAGE = "../README.md"


def blocks() -> dict[str, str]:
    median, omniglot, molecules = (
        read_runs(name)["main"] for name in ("median", "omniglot", "molecules")
    )
    plain = {"convolution": "gcn", "local_aggregation": "sum"}
    gcn = [run for run in molecules if plain.items() <= run.fields.items()]

    def cells(
        runs: Sequence[Run], score: Callable[[Run], float], form: str, rival: str
    ) -> list[str]:
        """The mean score of each method; that of equilibrium aggregation is bold."""
        means = {
            label: format(statistics.fmean(map(score, some)), form).replace("%", " %")
            for label, some in group(runs, lambda run: run.label).items()
        }
        other = f"{rival}, {means[rival.lower().replace(' ', '-')]}" if rival else "not run"
        return [means["sum"], means["attention"], other, f"**{means['equilibrium']}**"]

    headings = ("experiment", "sum", "attention", "best other rival", "equilibrium")
    rows = [
        ["[median](docs/reproduction/median.md) of 100 numbers, mean squared error",
         *cells(median, lambda run: run.last("mse"), ".1e", "")],
        ["[counting](docs/reproduction/omniglot.md) handwritten characters, test accuracy",
         *cells(omniglot, lambda run: run.selected("test_accuracy", "validation_accuracy"), ".1%",
                "Set Transformer")],
        ["[molhiv](docs/reproduction/molecules.md) molecules, GCN, test ROC-AUC",
         *cells(gcn, lambda run: run.selected("test_roc_auc", "valid_score"), ".4f", "mean")],
    ]  # fmt: skip
    return {"experiments": table(headings, rows)}
