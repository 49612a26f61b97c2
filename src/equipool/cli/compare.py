"""`equipool compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipool.cli import console, tables

if TYPE_CHECKING:
    from equipool.estimators.cross_validation import MethodScores


def compare(
    table: tables.TableFile,
    bag: tables.Bag,
    label: tables.Label,
    features: tables.Features = None,
    exclude: tables.Exclude = None,
    categories: tables.Categories = None,
    missing: tables.Missing = "error",
    weight: tables.Weight = None,
    group: Annotated[str | None, typer.Option(
        help="column of groups; all bags of a group are in the same fold",
        metavar="COLUMN")] = None,
    task: tables.Task = None,
    aggregation: Annotated[str, typer.Option(
        help="methods to compare; p-values are against the first", metavar="A,B",
    )] = "equilibrium,attention,mean",
    folds: Annotated[int, typer.Option(help="number of folds", metavar="INT")] = 10,
    repeats: Annotated[int, typer.Option(
        help="number of repeats, each with new folds", metavar="INT")] = 1,
    metric: Annotated[str | None, typer.Option(
        help="scikit-learn scorer (default: roc_auc for two classes, accuracy for more, r2 for "
        "numbers)",
        metavar="NAME")] = None,
    clip: tables.Clip = "3",
    max_iter: tables.MaxIter = None,
    max_seconds: tables.MaxSeconds = None,
    seed: tables.Seed = 0,
    out: Annotated[Path | None, typer.Option(
        help="JSON file for all scores, versions and hardware", metavar="PATH")] = None,
    device: console.Device = "auto",
    n_jobs: tables.Jobs = 1,
) -> None:  # fmt: skip
    """Compare methods by cross-validation on a table of bags.

    All methods use the same folds of bags, stratified by class. Scaling, imputation and early
    stopping see only the training bags. P-values are from the corrected resampled t-test against
    the first method.
    """
    with console.plain_errors(console.WRONG_USE):
        tables.check_table(table)
        if out is not None:
            tables.check_new(out)
        where = console.choose_device(device)
        methods = tables.split_names("--aggregation", aggregation) or ()
        options = tables.TableOptions(
            table, bag, (label,), tables.split_names("--features", features),
            tables.split_names("--exclude", exclude) or (),
            tables.split_names("--categories", categories) or (), missing, weight, group,
        )  # fmt: skip
        tables.check_aggregations(methods)
        limit = tables.parse_clip(clip)
    with console.plain_errors():
        from equipool.estimators.cross_validation import cross_validate, make_folds

        _, found = options.read(keep_missing=True)
        assert found.y is not None
        chosen = tables.choose_task(found.y, task)
        metric = _metric(metric, chosen, found.y)
        parts = make_folds(
            found.y, found.group, folds=folds, repeats=repeats, random_state=seed,
            stratified=chosen == "classification",
        )  # fmt: skip
        estimators = {
            name: tables.make_estimator(
                chosen, name, clip=limit, seed=seed, device=device, jobs=n_jobs,
                max_iter=max_iter, max_seconds=max_seconds, verbose=False,
            )
            for name in methods
        }  # fmt: skip
        with tables.warnings_as_lines():
            results = list(
                cross_validate(estimators, found, parts, repeats, metric, _reporter(len(parts)))
            )
        settings = {
            "table": table.name, "bags": len(found.ids), "elements": len(found.rows),
            "features": found.bags.num_features, "label": label, "group": group,
            "task": chosen, "metric": metric, "folds": folds, "repeats": repeats, "seed": seed,
            "missing": missing, "clip": limit, "max_iter": max_iter, "max_seconds": max_seconds,
        }  # fmt: skip
        record = _record(settings, results, where)
        _print(results, metric)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            console.report_line(f"All scores are in {out}")


def _metric(name: str | None, task: str, y: Any) -> str:
    import numpy as np
    from sklearn.metrics import get_scorer_names

    if name is None:
        if task == "regression":
            return "r2"
        return "roc_auc" if len(np.unique(y)) == 2 else "accuracy"
    if name not in get_scorer_names():
        raise ValueError(f"--metric is {name!r}, expected one of {', '.join(get_scorer_names())}")
    return name


def _reporter(total: int) -> Any:
    def report(name: str, fold: int, score: float) -> None:
        typer.echo(f"{name}: fold {fold + 1} of {total}: {score:.4f}", err=True)

    return report


def _record(
    settings: dict[str, Any], results: list[MethodScores], device: str | None
) -> dict[str, Any]:
    from equipool.environment import hardware, now, versions
    from equipool.estimators.cross_validation import TEST
    from equipool.training.devices import resolve_device

    methods = [
        asdict(one) | {"mean": one.mean, "deviation": one.deviation,
                       "deviation_of_repeats": one.deviation_of_repeats}
        for one in results
    ]  # fmt: skip
    return settings | {
        "test": TEST, "methods": methods, "date": now(), "versions": versions(),
        "hardware": hardware(resolve_device(device)),
    }  # fmt: skip


def _print(results: list[MethodScores], metric: str) -> None:
    first = results[0].name
    headings = ["aggregation", f"mean {metric}", "deviation", f"p, against {first}", "seconds"]
    rows: list[tuple[str, ...]] = [
        (one.name, f"{one.mean:.4f}", f"{one.deviation:.4f}",
         "" if one.p_value is None else f"{one.p_value:.3g}", f"{one.seconds:,.0f}")
        for one in results
    ]  # fmt: skip
    if results[0].repeats > 1:
        headings.insert(3, "deviation of repeats")
        rows = [
            (*row[:3], f"{one.deviation_of_repeats:.4f}", *row[3:])
            for row, one in zip(rows, results, strict=True)
        ]  # fmt: skip
    console.print_table(headings, rows)
