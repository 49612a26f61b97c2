"""What the commands for bags share: their settings, and how they read tables and models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from equipool.cli import console
from equipool.settings import Count, OneOf, Range

if TYPE_CHECKING:
    from equipool.estimators import TableSchema
    from equipool.estimators.tables import TableBags

MOST_CLASSES = 10  # of whole numbers, to take them for classes
Names = tuple[str, ...]
Aggregation = Annotated[str, OneOf("equipool.baselines.AGGREGATIONS")]


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
        """Read the table, and report its size, its feature columns and those that were left out."""
        from equipool.estimators.tables import read_training_table
        from equipool.tables import listed

        with warnings_as_lines():
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


def choose_task(y: Any, task: str | None) -> str:
    """The task that was typed, or the one that the labels suggest; reports it."""
    import numpy as np

    values = np.unique(y[~np.isnan(y)] if y.dtype.kind == "f" else y)
    if task is None:
        few = len(values) <= MOST_CLASSES and y.dtype.kind != "f"
        both = y.ndim == 2 and np.isin(values, (0, 1)).all()
        task = "classification" if y.dtype.kind not in "if" or few or both else "regression"
    classes = ""
    if task == "classification" and y.ndim == 1:
        if len(values) == 1:
            alone = f"all bags have the label {values.tolist()[0]!r}"
            raise ValueError(f"{alone}: classification needs two classes or more")
        shown = ", ".join(map(str, values[:MOST_CLASSES]))
        classes = f" of {len(values)} classes: {shown}{', ...' * (len(values) > MOST_CLASSES)}"
    console.report_line(f"Task: {task}{classes}")
    return task


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as lines on stderr, after the block."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for one in caught:
        console.note(f"Warning: {one.message}")


def check_new(out: Path) -> None:
    """Refuse to write over something that exists."""
    if out.exists():
        raise ValueError(f"--out is {out}, which exists: choose another name or remove it")


def check_output(out: Path | None, source: Path | str | None) -> None:
    """Refuse an output that is the input or no file."""
    if out is None:
        return
    if out.exists() and not out.is_file():
        raise ValueError(f"--out is {out}, expected a file")
    if source is not None and out.resolve() == Path(source).resolve():
        raise ValueError(f"--out is {out}, which is the input")


def check_ending(out: Path | None) -> None:
    """Refuse an output whose ending names no format of tables."""
    from equipool import tables

    if out is not None:
        tables.check_ending(out, "--out")


def load_model(path: Path, device: str, threads: int = 1) -> Any:
    """The estimator in a file, which computes on this device."""
    from equipool.estimators import load

    console.choose_device(device, threads)
    return load(path).set_params(device=device)


def write_table(table: Any, out: Path | None, digits: int | None = None) -> None:
    """Write a table to a file, or as CSV to stdout."""
    import sys

    from equipool.tables import write_csv, write_file

    if out is None:
        write_csv(table, sys.stdout, digits)
    else:
        write_file(table, out)
        console.note(f"Wrote {len(table):,} rows to {out}")
