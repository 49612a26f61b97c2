"""`equipool predict`, `influence` and `explore`: questions to a trained model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from equipool.cli import console, fit
from equipool.settings import Count


@dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of `equipool influence`.

    Args:
        out: .csv, .csv.gz or .parquet to write (default: stdout).
        unknown: categories that training did not have: stop, or treat as no category.
        device: cpu, cuda, cuda:1, ... or auto.
        threads: CPU threads.
    """

    out: Path | None = None
    unknown: Literal["error", "ignore"] = "error"
    device: str = "auto"
    threads: Count = 1

    def load(self, model: Path) -> Any:
        """The estimator in a file."""
        from equipool.estimators import load

        console.choose_device(self.device, self.threads)
        return load(model).set_params(device=self.device)

    def check_output(self, source: Path | None) -> None:
        """Refuse an output that is no table, or the input."""
        from equipool.tables import check_ending

        if self.out is None:
            return
        check_ending(self.out, "--out")
        if source is not None and self.out.resolve() == source.resolve():
            raise typer.BadParameter(f"--out is {self.out}, which is the input")

    def write(self, table: Any, digits: int | None = None) -> None:
        """Write a table to the output, or as CSV to stdout."""
        from equipool.tables import write_csv, write_file

        if self.out is None:
            write_csv(table, sys.stdout, digits)
        else:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            write_file(table, self.out)
            console.note(f"Wrote {len(table):,} rows to {self.out}")


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """Flags of `equipool predict`.

    Args:
        unknown: bags: categories that training did not have: stop, or treat as no category.
        column: molecules: SMILES column of the .csv (default: as in training).
        keep: molecules: input columns to copy to the output.
        which: molecules: best or last checkpoint.
    """

    column: str | None = None
    keep: fit.Names | None = None
    which: Literal["best", "last"] = "best"


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """Flags of `equipool explore`.

    Args:
        bag: bag to show.
        out: page to write.
        unknown: categories that training did not have: stop, or treat as no category.
    """

    bag: str
    out: Path = Path("explore.html")
    unknown: Literal["error", "ignore"] = "error"


def predict(
    model: Annotated[Path, typer.Argument(
        help="file of a model (equipool fit) or directory of a molecules run", metavar="MODEL",
        exists=True)],
    file: Annotated[Path | None, typer.Argument(
        help="a table of bags, or of molecules with a column of SMILES", metavar="FILE")] = None,
    smiles: Annotated[list[str] | None, typer.Option(
        help="molecules: SMILES instead of a file; can be repeated", metavar="TEXT")] = None,
    *, options: PredictOptions,
) -> None:  # fmt: skip
    """Predict bags or molecules with a trained model.

    For a table of bags, writes one row per bag in the order in which the bags first appear: the
    predicted label (column predicted_LABEL), and the probability of each class. The table needs the
    columns of the training table, except for the label.

    For molecules, writes one row per molecule, in the order of the input: probabilities, or numbers
    in the units of the labels. Molecules that cannot be read have empty cells and are listed on
    stderr; if none can be read, the exit status is 1.
    """
    options.check_output(file)
    if not model.is_file():
        _predict_molecules(model, file, smiles, options)
        return
    if file is None or smiles or options.column or options.keep:
        needed = "give a FILE, without --smiles, --column and --keep"
        raise typer.BadParameter(f"{model} was trained on bags: {needed}")
    options.write(options.load(model).predict_table(file, unknown=options.unknown))


def _predict_molecules(
    run: Path, file: Path | None, smiles: list[str] | None, options: PredictOptions
) -> None:
    import pyarrow as pa

    from equipool.experiments.molecules.predictor import load_predictor, predict_table
    from equipool.tables import open_table

    keep = options.keep or ()
    if (file is None) == (smiles is None) or (smiles and keep):
        raise typer.BadParameter("give either --smiles or a FILE, which --keep requires")
    device = console.choose_device(options.device, options.threads)
    predictor = load_predictor(run, options.which, device=device)
    column = options.column or predictor.smiles_column
    if file is None:
        queries = pa.table({column: smiles})
    else:
        names = [column, *keep]
        queries = open_table(file).read(names, text=names).data
    table, problems = predict_table(predictor, queries, column, keep)
    options.write(table)
    for problem in problems:
        console.note(f"row {problem.row}: {problem.smiles!r}: {problem.reason}")
    if problems:
        console.note(f"{len(problems):,} of {len(table):,} molecules could not be read")
    if len(problems) == len(table):
        raise typer.Exit(1)


def influence(
    model: console.Model,
    table: console.Table,
    bag: Annotated[list[str] | None, typer.Option(
        help="bag to measure; can be repeated (default: all)", metavar="ID")] = None,
    *, options: Options,
) -> None:  # fmt: skip
    """Measure the influence of each element on predictions.

    Writes one row per element, in each bag the strongest first: its bag, its row in the table (from
    0), and the prediction with it minus that without it: of the number predicted, or of a class's
    score (logit). A positive influence on a class means that the element is evidence for it. With
    two classes, this is the second class.
    """
    options.check_output(table)
    estimator = options.load(model)
    effects = estimator.influence_table(table, bags=bag, unknown=options.unknown)
    options.write(effects, digits=3)


def explore(model: console.Model, table: console.Table, options: ExploreOptions) -> None:
    """Write a page that shows a bag and the model's prediction.

    The model runs in the page, which needs neither Python nor an internet connection. It shows the
    elements in two dimensions, coloured by a feature or by what they contribute. Click an element
    to switch it off, and see the prediction change.
    """
    from equipool.estimators import load
    from equipool.estimators.tables import read_table
    from equipool.explore.model import model_page
    from equipool.files import write_text

    bag, out = options.bag, options.out
    if out.suffix != ".html":
        raise typer.BadParameter(f"--out is {out}, expected a name that ends in .html")
    estimator = load(model).set_params(device="cpu")
    found = read_table(table, estimator.table_schema_, unknown=options.unknown)
    number = found.number(bag)
    rows = found.rows[found.bags.ptr[number] : found.bags.ptr[number + 1]]
    title, names = f"{estimator.table_schema_.bag} {bag}", [f"row {row}" for row in rows]
    page = model_page(estimator, found.bags[number], title=title, names=names)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
    console.note(f"Wrote {out}: open it in a browser")
