"""`equipool compare`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from equipool.cli import bags, console
from equipool.settings import Count, Range, check

if TYPE_CHECKING:
    from equipool.estimators.cross_validation import MethodScores


@dataclass(frozen=True, kw_only=True)
class Options(bags.FitOptions):
    """Flags of `equipool compare`.

    Args:
        aggregation: methods to compare.
        folds: number of folds.
        repeats: number of repeats, each with new folds.
        group: column of groups; all bags of a group are in the same fold.
        metric: scikit-learn scorer (default: roc_auc for two classes, accuracy for more, r2 for
            numbers).
        out: JSON file for all scores, versions and hardware.
    """

    aggregation: bags.Names = ("equilibrium", "attention", "mean")
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
    out = options.out
    with console.plain_errors(console.WRONG_USE):
        if out is not None:
            bags.check_new(out)
        if len(options.label) > 1:
            raise ValueError(f"--label is {','.join(options.label)}, expected one column")
        check("--aggregation", options.aggregation, tuple[bags.Aggregation, ...])
        device = console.choose_device(options.device)
    with console.plain_errors():
        from equipool.estimators.cross_validation import cross_validate, make_folds

        # the means are those of each fold's training bags
        missing = "keep" if options.missing == "mean" else options.missing
        _, found = options.read(table, missing, options.group)
        assert found.y is not None
        task = bags.choose_task(found.y, options.task)
        metric = _metric(options.metric, task, found.y)
        parts = make_folds(
            found.y, found.group, folds=options.folds, repeats=options.repeats,
            random_state=options.seed, stratified=task == "classification",
        )  # fmt: skip
        estimators = {name: options.estimator(task, name) for name in options.aggregation}

        def report(name: str, fold: int, score: float) -> None:
            console.note(f"{name}: fold {fold + 1} of {len(parts)}: {score:.4f}")

        with bags.warnings_as_lines():
            scores = cross_validate(estimators, found, parts, metric, report)
            results = list(scores)
        _print(results, metric)
        if out is not None:
            _write(out, table, options, results, {"task": task, "metric": metric}, device)
            console.report_line(f"All scores are in {out}")


def _metric(name: str | None, task: str, y: Any) -> str:
    import numpy as np

    if name is None and task == "classification":
        return "roc_auc" if len(np.unique(y)) == 2 else "accuracy"
    return name or "r2"


def _print(results: list[MethodScores], metric: str) -> None:
    headings = ["aggregation", f"mean {metric}", "deviation", "seconds"]
    console.print_table(headings, [
        (one.name, f"{one.mean:.4f}", f"{one.deviation:.4f}", f"{one.seconds:,.0f}")
        for one in results
    ])  # fmt: skip


def _write(
    out: Path, table: Path, options: Options, results: list[MethodScores], chosen: dict[str, str],
    device: str | None,
) -> None:  # fmt: skip
    """All scores, with what they were measured with."""
    from equipool.environment import hardware, now, versions
    from equipool.files import write_json
    from equipool.training.devices import resolve_device

    methods = [asdict(one) | {"mean": one.mean, "deviation": one.deviation} for one in results]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"table": table.name} | asdict(options) | chosen | {
        "out": out.name, "methods": methods, "date": now(), "versions": versions(),
        "hardware": hardware(resolve_device(device)),
    })  # fmt: skip
