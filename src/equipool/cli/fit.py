"""`equipool fit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipool.cli import bags, console
from equipool.settings import check


@dataclass(frozen=True, kw_only=True)
class Options(bags.FitOptions):
    """Flags of `equipool fit`.

    Args:
        out: file of the model.
        aggregation: equilibrium, attention, mean, sum, max, ...
    """

    out: Path
    aggregation: str = "equilibrium"


def fit(table: console.Table, options: Options) -> None:
    """Train a model on a table of bags.

    The table has one row per element, in any order, and a column that names the bag of each
    element. The label of a bag is repeated in all of its rows. Text columns become categories.
    `equipool predict` and `equipool influence` use the model.
    """
    out = options.out
    with console.plain_errors(console.WRONG_USE):
        bags.check_new(out)
        check("--aggregation", options.aggregation, bags.Aggregation)
        console.choose_device(options.device)
    with console.plain_errors():
        from equipool.estimators.table_methods import fit_bags

        schema, found = options.read(table, options.missing)
        task = bags.choose_task(found.y, options.task)
        estimator = options.estimator(task, options.aggregation, verbose=1)
        fit_bags(estimator, schema, found)
        estimator.save(out)
        reasons = zip(estimator.history_, estimator.stopped_, strict=True)
        for number, (history, stopped) in enumerate(reasons, 1):
            losses = f"training loss {history['loss'][-1]:.4g} in the last step"
            if len(history.get("validation_loss", ())):
                losses += f"; best validation loss {min(history['validation_loss']):.4g}"
            steps = f"{len(history['loss']):,} steps, ended by {stopped}"
            console.report_line(f"Network {number}: {steps}; {losses}")
    console.report_line(f"The model is in {out}")
    console.report_line(f"Predict: {console.command_line(['predict', str(out), 'TABLE'], {})}")
