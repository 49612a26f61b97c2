"""`equipool fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equipool.cli import console, tables


def fit(
    table: tables.TableFile,
    bag: tables.Bag,
    label: Annotated[str, typer.Option(
        help="label column, or several separated by commas", metavar="COLUMN")],
    out: Annotated[Path, typer.Option(help="file of the model", metavar="MODEL")],
    features: tables.Features = None,
    exclude: tables.Exclude = None,
    categories: tables.Categories = None,
    missing: tables.Missing = "error",
    weight: tables.Weight = None,
    task: tables.Task = None,
    aggregation: Annotated[str, typer.Option(
        help="equilibrium, attention, mean, sum, max, ...", metavar="NAME")] = "equilibrium",
    clip: tables.Clip = "3",
    max_iter: tables.MaxIter = None,
    max_seconds: tables.MaxSeconds = None,
    seed: tables.Seed = 0,
    device: console.Device = "auto",
    n_jobs: tables.Jobs = 1,
) -> None:  # fmt: skip
    """Train a model on a table of bags.

    The table has one row per element, in any order, and a column that names the bag of each
    element. The label of a bag is repeated in all of its rows. Text columns become categories.
    `equipool predict` and `equipool influence` use the model.
    """
    with console.plain_errors(console.WRONG_USE):
        tables.check_table(table)
        tables.check_new(out)
        console.choose_device(device)
        options = tables.TableOptions(
            table, bag, tables.split_names("--label", label) or (),
            tables.split_names("--features", features),
            tables.split_names("--exclude", exclude) or (),
            tables.split_names("--categories", categories) or (), missing, weight,
        )  # fmt: skip
        tables.check_aggregations([aggregation])
        limit = tables.parse_clip(clip)
    with console.plain_errors():
        schema, found = options.read()
        estimator = tables.make_estimator(
            tables.choose_task(found.y, task), aggregation, clip=limit, seed=seed,
            device=device, jobs=n_jobs, max_iter=max_iter, max_seconds=max_seconds, verbose=True,
        )  # fmt: skip
        estimator.fit_table_bags(schema, found)
        estimator.save(out)
        for number, history in enumerate(estimator.history_, 1):
            _report(number, history, estimator.stopped_[number - 1])
    with console.plain_errors(), tables.warnings_as_lines():
        from equipool.estimators.cross_validation import estimate_score

        score, about = estimate_score(estimator, found)
        console.report_line(f"Score: {about}" if score is None else f"Score: {score:.3g} {about}")
    console.report_line(f"The model is in {out}")
    console.report_line(f"Predict: {console.command_line(['predict', str(out), 'TABLE'], {})}")


def _report(number: int, history: dict[str, Any], stopped: str) -> None:
    """Print how long a network was trained, and how well it fits."""
    losses = f"training loss {history['loss'][-1]:.4g} in the last step"
    if len(history.get("validation_loss", ())):
        losses += f"; best validation loss {min(history['validation_loss']):.4g}"
    console.report_line(
        f"Network {number}: {len(history['loss']):,} steps, ended by {stopped}; {losses}"
    )
