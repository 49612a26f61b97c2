"""What the commands for tables share: their flags, and reading the training table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipool.cli import console
from equipool.settings import Range, read

if TYPE_CHECKING:
    from equipool.estimators import TableSchema
    from equipool.estimators.tables import TableBags

MOST_CLASSES = 10  # of whole numbers, to take them for classes

TaskName = Literal["classification", "regression"]
MissingName = Literal["error", "mean"]
UnknownName = Literal["error", "ignore"]


def _option(about: str, metavar: str) -> Any:
    return typer.Option(help=about, metavar=metavar)


TableFile = Annotated[Path, typer.Argument(
    help="CSV, gzipped CSV or Parquet, with one row per element", metavar="TABLE")]  # fmt: skip
Model = Annotated[Path, typer.Argument(help="file of the model", metavar="MODEL")]
Bag = Annotated[str, _option("column that names the bag of each element", "COLUMN")]
Label = Annotated[str, _option(
    "label column; all rows of a bag have the same label", "COLUMN")]  # fmt: skip
Features = Annotated[str | None, _option(
    "columns that describe the elements (default: all others)", "A,B")]  # fmt: skip
Exclude = Annotated[str | None, _option("columns that are not features", "A,B")]
Categories = Annotated[str | None, _option("columns of numbers to read as categories", "A,B")]
Missing = Annotated[MissingName, _option(
    "missing values: stop, or use the column's mean", "error|mean")]  # fmt: skip
Weight = Annotated[str | None, _option("column with the weight of each bag", "COLUMN")]
Task = Annotated[TaskName | None, _option(
    "default: classification if labels are text or at most 10 different whole numbers",
    "classification|regression")]  # fmt: skip
Clip = Annotated[str, _option(
    "clip scaled features at this many standard deviations; none disables clipping",
    "FLOAT|none")]  # fmt: skip
MaxIter = Annotated[int | None, _option("largest number of training steps", "INT")]
MaxSeconds = Annotated[float | None, _option(
    "stop training each network after this many seconds; with fewer than 500 bags, a model has "
    "three networks", "FLOAT")]  # fmt: skip
Jobs = Annotated[int, console.option(
    "networks to train in parallel, each with one CPU thread", "INT")]  # fmt: skip
Seed = Annotated[int, _option("random seed", "INT")]
Unknown = Annotated[UnknownName, _option(
    "categories that training did not have: stop, or treat as no category",
    "error|ignore")]  # fmt: skip


@dataclass(frozen=True)
class TableOptions:
    """A training table and its columns, as they were typed."""

    table: Path
    bag: str
    label: tuple[str, ...]
    features: tuple[str, ...] | None
    exclude: tuple[str, ...]
    categories: tuple[str, ...]
    missing: MissingName
    weight: str | None
    group: str | None = None

    def read(self, *, keep_missing: bool = False) -> tuple[TableSchema, TableBags]:
        """Read the table, and report its size, its feature columns and the columns that were left
        out. With `keep_missing`, numbers are NaN where the mean would replace them."""
        from equipool.estimators.tables import read_training_table
        from equipool.tables import listed

        with warnings_as_lines():
            schema, found = read_training_table(
                self.table, bag=self.bag,
                label=self.label[0] if len(self.label) == 1 else self.label,
                features=self.features, exclude=self.exclude, categories=self.categories,
                missing="keep" if keep_missing and self.missing == "mean" else self.missing,
                weight=self.weight, group=self.group,
            )  # fmt: skip
        sizes = found.bags.sizes
        console.report_line(
            f"{self.table.name}: {len(found.rows):,} elements in {len(found.ids):,} bags of "
            f"{sizes.min():,} to {sizes.max():,}; {found.bags.num_features} features"
        )
        console.report_line(f"Feature columns: {listed([one.name for one in schema.features])}")
        return schema, found


def split_names(flag: str, text: str | None) -> tuple[str, ...] | None:
    """Names that were typed with commas between them; None if none were.

    Example:
        >>> split_names("--features", "age, dose")
        ('age', 'dose')
    """
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{flag} is {text!r}, expected names separated by commas")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{flag} names {twice!r} twice")
    return names


def choose_task(y: Any, task: TaskName | None) -> TaskName:
    """The task that was typed, or the one that the labels suggest; reports it."""
    import numpy as np

    present = y[~np.isnan(y)] if y.dtype.kind == "f" else y
    values = np.unique(present)
    if task is None:
        few = len(values) <= MOST_CLASSES and y.dtype.kind != "f"
        both = y.ndim == 2 and np.isin(values, (0, 1)).all()
        task = "classification" if y.dtype.kind not in "if" or few or both else "regression"
    if task == "classification" and y.ndim == 1:
        if len(values) == 1:
            raise ValueError(
                f"all bags have the label {values.tolist()[0]!r}: classification needs two classes "
                "or more"
            )
        shown = ", ".join(str(value) for value in values[:MOST_CLASSES])
        rest = ", ..." if len(values) > MOST_CLASSES else ""
        console.report_line(f"Task: classification of {len(values)} classes: {shown}{rest}")
    else:
        console.report_line(f"Task: {task}")
    return task


def make_estimator(
    task: TaskName, aggregation: str, *, clip: float | None, seed: int, device: str, jobs: int,
    max_iter: int | None, max_seconds: float | None, verbose: bool,
) -> Any:  # fmt: skip
    """An estimator with its defaults for all that is not given."""
    from equipool.estimators import SetClassifier, SetRegressor

    kind: Any = SetClassifier if task == "classification" else SetRegressor
    return kind(
        aggregation, clip=clip, random_state=seed, device=device, n_jobs=jobs, verbose=int(verbose),
        max_iter="auto" if max_iter is None else max_iter, max_seconds=max_seconds,
    )  # fmt: skip


def parse_clip(text: str) -> float | None:
    """The value of `--clip`.

    Example:
        >>> parse_clip("2.5"), parse_clip("none")
        (2.5, None)
    """
    clip: float | None = read("--clip", text, Annotated[float, Range(above=0)] | None)
    return clip


def check_aggregations(names: Iterable[str]) -> None:
    """Refuse names that no aggregation has."""
    from equipool.baselines import AGGREGATIONS

    for name in names:
        if name not in AGGREGATIONS:
            known = ", ".join(AGGREGATIONS)
            raise ValueError(f"--aggregation is {name!r}, expected one of {known}")


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as lines on stderr, after the block."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for one in caught:
        typer.echo(f"Warning: {one.message}", err=True)


def check_new(out: Path) -> None:
    """Refuse to write over something that exists."""
    if out.exists():
        raise ValueError(f"--out is {out}, which exists: choose another name or remove it")


def check_output(out: Path | None, table: Path) -> None:
    """Refuse an output that is the input, no file, or of no known format."""
    if out is None:
        return
    if out.exists() and not out.is_file():
        raise ValueError(f"--out is {out}, expected a file")
    if out.resolve() == table.resolve():
        raise ValueError(f"--out is {out}, which is the input")
    from equipool.tables import check_ending

    check_ending(out, "--out")


def is_model(path: Path) -> bool:
    """Whether this is the file of a model, and not the directory of a run."""
    return path.is_file()


def check_model(path: Path, *commands: str) -> None:
    """Refuse a path that none of these commands can have written."""
    if not path.exists():
        raise ValueError(f"MODEL is {path}, which does not exist")
    written = {"fit": is_model(path), "train": (path / "config.json").is_file()}
    if not any(written[command] for command in commands):
        expected = " or ".join(f"`equipool {command}`" for command in commands)
        raise ValueError(f"MODEL is {path}, expected what {expected} writes")


def load_model(path: Path, device: str) -> Any:
    """The estimator in a file, which computes on this device."""
    from equipool.estimators import load

    estimator = load(path)
    return estimator.set_params(device=device)


def check_table(table: Path) -> None:
    """Refuse a table that is not a file."""
    if not table.is_file():
        what = "is not a file" if table.exists() else "does not exist"
        raise ValueError(f"TABLE is {table}, which {what}")
