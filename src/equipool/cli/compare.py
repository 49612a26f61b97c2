"""`equipool compare`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from equipool.cli import console, fit
from equipool.settings import Count, OneOf, Range, check

Aggregation = Annotated[str, OneOf("equipool.baselines.AGGREGATIONS")]


@dataclass(frozen=True, kw_only=True)
class Options(fit.FitOptions):
    """Flags of `equipool compare`.

    Args:
        aggregation: methods to compare.
        folds: number of folds.
        repeats: number of repeats, each with new folds.
        group: column of groups; all bags of a group are in the same fold.
        metric: scikit-learn scorer (default: roc_auc for two classes, accuracy for more, r2 for
            numbers).
        out: JSON file for all scores, the settings and versions.
    """

    aggregation: fit.Names = ("equilibrium", "attention", "mean")
    folds: Annotated[int, Range(least=2)] = 10
    repeats: Count = 1
    group: str | None = None
    metric: str | None = None
    out: Path | None = None


def compare(table: console.Table, options: Options) -> None:
    """Compare methods by cross-validation on a table of bags.

    All methods use the same folds of bags, stratified by class. Scaling, imputation and early
    stopping see only the training bags.
    """
    import numpy as np

    from equipool.environment import versions
    from equipool.estimators.cross_validation import cross_validate, make_folds
    from equipool.files import write_json

    if len(options.label) > 1:
        raise typer.BadParameter(f"--label is {','.join(options.label)}, expected one column")
    check("--aggregation", options.aggregation, tuple[Aggregation, ...])
    console.choose_device(options.device)
    # the means are those of each fold's training bags
    missing = "keep" if options.missing == "mean" else options.missing
    _, found = options.read(table, missing, options.group)
    assert found.y is not None
    task = fit.choose_task(found.y, options.task)
    of_classes = "roc_auc" if len(np.unique(found.y)) == 2 else "accuracy"
    metric = options.metric or (of_classes if task == "classification" else "r2")
    folds = make_folds(
        found.y, found.group, folds=options.folds, repeats=options.repeats,
        random_state=options.seed, stratified=task == "classification",
    )  # fmt: skip
    estimators = {name: options.estimator(task, name) for name in options.aggregation}

    def report(name: str, fold: int, score: float) -> None:
        console.note(f"{name}: fold {fold + 1} of {len(folds)}: {score:.4f}")

    results = list(cross_validate(estimators, found, folds, metric, report))
    headings = ["aggregation", f"mean {metric}", "deviation", "seconds"]
    console.print_table(headings, [
        (one.name, f"{one.mean:.4f}", f"{one.deviation:.4f}", f"{one.seconds:,.0f}")
        for one in results
    ])  # fmt: skip
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, asdict(options) | {
            "table": table.name, "out": options.out.name, "task": task, "metric": metric,
            "methods": [asdict(one) for one in results], "versions": versions(),
        })  # fmt: skip
        console.report_line(f"All scores are in {options.out}")
