"""`equipool fit`, and what it shares with `compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipool.cli import console
from equipool.settings import Count, Range

if TYPE_CHECKING:
    from equipool.estimators import TableSchema
    from equipool.estimators.tables import TableBags

MOST_CLASSES = 10  # of whole numbers, to take them for classes
Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of commands that train on a table.

    Args:
        bag: column that names the bag of each element.
        label: column of the label, the same in all rows of a bag; `fit` takes several.
        features: columns that describe the elements (default: all others).
        exclude: columns that are not features.
        categories: columns of numbers to read as categories.
        missing: missing values: stop, or use the column's mean.
        weight: column with the weight of each bag.
        task: default: classification if labels are text or at most 10 different whole numbers.
        clip: clip scaled features at this many standard deviations; none disables clipping.
        max_iter: largest number of training steps.
        max_seconds: stop training each network after this many seconds; with fewer than 500 bags, a
            model has three networks.
        seed: random seed.
        device: cpu, cuda, cuda:1, ... or auto.
        n_jobs: networks to train in parallel, each with one CPU thread.
    """

    bag: str
    label: Names
    features: Names | None = None
    exclude: Names = ()
    categories: Names = ()
    missing: Literal["error", "mean"] = "error"
    weight: str | None = None
    task: Literal["classification", "regression"] | None = None
    clip: Annotated[float, Range(above=0)] | None = 3.0
    max_iter: Count | None = None
    max_seconds: Annotated[float, Range(above=0)] | None = None
    seed: int = 0
    device: str = "auto"
    n_jobs: int = 1

    def read(
        self, table: Path, missing: Literal["error", "mean", "keep"], group: str | None = None
    ) -> tuple[TableSchema, TableBags]:
        """Read the table, and report its size and its feature columns."""
        from equipool.estimators.tables import read_training_table
        from equipool.tables import listed

        schema, found = read_training_table(
            table, bag=self.bag, label=self.label[0] if len(self.label) == 1 else self.label,
            features=self.features, exclude=self.exclude, categories=self.categories,
            missing=missing, weight=self.weight, group=group,
        )  # fmt: skip
        sizes = found.bags.sizes
        console.report_line(
            f"{table.name}: {len(found.rows):,} elements in {len(found.ids):,} bags of "
            f"{sizes.min():,} to {sizes.max():,}; {found.bags.num_features} features"
        )
        console.report_line(f"Feature columns: {listed([one.name for one in schema.features])}")
        return schema, found

    def estimator(self, task: str, aggregation: str, verbose: int = 0) -> Any:
        from equipool.estimators import SetClassifier, SetRegressor

        kind: Any = SetClassifier if task == "classification" else SetRegressor
        return kind(
            aggregation, clip=self.clip, max_iter=self.max_iter or "auto", n_jobs=self.n_jobs,
            max_seconds=self.max_seconds, random_state=self.seed, device=self.device,
            verbose=verbose,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options(FitOptions):
    """Flags of `equipool fit`.

    Args:
        out: file of the model.
        aggregation: pooling, such as equilibrium, attention, mean, sum or max.
    """

    out: Path
    aggregation: str = "equilibrium"


def fit(table: console.Table, options: Options) -> None:
    """Train a model on a table of bags.

    The table has one row per element, in any order, and a column that names the bag of each
    element. The label of a bag is repeated in all of its rows. Text columns become categories.
    `equipool predict` and `equipool influence` use the model.
    """
    from equipool.estimators.tables import fit_bags

    out = options.out
    if out.exists():
        raise typer.BadParameter(f"--out is {out}, which exists: choose another name or remove it")
    console.choose_device(options.device)
    schema, found = options.read(table, options.missing)
    task = choose_task(found.y, options.task)
    estimator = options.estimator(task, options.aggregation, verbose=1)
    fit_bags(estimator, schema, found)
    estimator.save(out)
    reasons = zip(estimator.history_, estimator.stopped_, strict=True)
    for number, (history, stopped) in enumerate(reasons, 1):
        steps = len(history["loss"])
        losses = f"training loss {history['loss'][-1]:.4g} in the last step"
        if "validation_loss" in history:
            losses += f"; best validation loss {min(history['validation_loss']):.4g}"
        console.report_line(f"Network {number}: {steps:,} steps, ended by {stopped}; {losses}")
    console.report_line(f"The model is in {out}")
    console.report_line(f"Predict: {console.command_line('predict', out, 'TABLE')}")


def choose_task(y: Any, task: str | None) -> str:
    """The task that was typed, or the one that the labels suggest; reports it."""
    import numpy as np

    values = np.unique(y[~np.isnan(y)] if y.dtype.kind == "f" else y)
    if task is None:
        few = len(values) <= MOST_CLASSES and y.dtype.kind != "f"
        both = y.ndim == 2 and np.isin(values, (0, 1)).all()
        task = "classification" if y.dtype.kind not in "if" or few or both else "regression"
    classes = task == "classification" and y.ndim == 1
    console.report_line(f"Task: {task}{f' of {len(values)} classes' * classes}")
    return task
