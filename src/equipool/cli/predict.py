"""`equipool predict`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from equipool.cli import console, tables

MOLECULES = "Molecules"  # heading of options


def predict(
    model: Annotated[Path, typer.Argument(
        help="file of a model (equipool fit) or directory of a molecules run", metavar="MODEL")],
    file: Annotated[str | None, typer.Argument(
        help="a table of bags; or molecules: a .csv, or a .smi or .txt with one SMILES per line, "
             "- for stdin", metavar="FILE")] = None,
    out: Annotated[Path | None, typer.Option(
        help="file to write (default: stdout)", metavar="PATH")] = None,
    unknown: tables.Unknown = "error",
    smiles: Annotated[list[str] | None, typer.Option(
        help="a molecule instead of a file; can be repeated", metavar="TEXT",
        rich_help_panel=MOLECULES)] = None,
    column: Annotated[str | None, typer.Option(
        help="SMILES column of the .csv (default: as in training)", metavar="NAME",
        rich_help_panel=MOLECULES)] = None,
    keep: Annotated[str | None, typer.Option(
        help="input columns to copy to the output", metavar="A,B",
        rich_help_panel=MOLECULES)] = None,
    which: Annotated[Literal["best", "last"], typer.Option(
        help="best or last checkpoint", metavar="best|last", rich_help_panel=MOLECULES)] = "best",
    device: console.Device = "auto",
    threads: console.Threads = 1,
) -> None:  # fmt: skip
    """Predict bags or molecules with a trained model.

    For a table of bags, writes one row per bag in the order in which the bags first appear: the
    predicted label (column predicted_LABEL), and the probability of each class. The table needs the
    columns of the training table, except for the label.

    For molecules, writes one row per molecule, in the order of the input: probabilities, or numbers
    in the units of the labels. Molecules that cannot be read have empty cells and are listed on
    stderr; if none can be read, the exit status is 1.
    """
    with console.plain_errors(console.WRONG_USE):
        tables.check_model(model, "fit", "train")
    if tables.is_model(model):
        with console.plain_errors(console.WRONG_USE):
            given = {"--smiles": smiles, "--column": column, "--keep": keep}
            if found := next((flag for flag, value in given.items() if value), None):
                raise ValueError(f"{found} is for molecules; {model} was trained on bags")
            if file is None:
                raise ValueError("FILE is missing: give a table of bags")
        predict_bags(model, Path(file), out, unknown, device, threads)
    else:
        predict_molecules(model, file, smiles, column, keep, out, which, device, threads)


def predict_bags(
    model: Path, table: Path, out: Path | None, unknown: tables.UnknownName, device: str,
    threads: int,
) -> None:  # fmt: skip
    """Predict the bags of a table."""
    with console.plain_errors(console.WRONG_USE):
        tables.check_table(table)
        tables.check_output(out, table)
        console.choose_device(device, threads)
    with console.plain_errors():
        from equipool.tables import write_csv, write_file

        estimator = tables.load_model(model, device)
        found = estimator.read_table(table, unknown=unknown)
        predicted = estimator.predict_table_bags(found)
        if out is None:
            write_csv(predicted, sys.stdout)
        else:
            write_file(predicted, out)
            console.note(f"Wrote {len(predicted):,} rows to {out}")


def predict_molecules(
    run: Path, file: str | None, smiles: list[str] | None, column: str | None, keep: str | None,
    out: Path | None, which: Literal["best", "last"], device: str, threads: int,
) -> None:  # fmt: skip
    """Predict molecules with a run."""
    with console.plain_errors(console.WRONG_USE):
        if (file is None) == (not smiles):
            raise ValueError("give either a FILE or --smiles")
        if keep is not None and file is None:
            raise ValueError("--keep requires a FILE with columns")
        where = console.choose_device(device, threads)
        _check_files(file, out)
        kept = _columns(keep)
    with console.plain_errors():
        from equipool.files import write_text
        from equipool.training.devices import check_extras

        check_extras()
        from equipool.experiments.molecules import predictor as molecules

        predictor = molecules.load_predictor(run, which, device=where)
        if file is None:
            queries = [[text] for text in smiles or ()]
        else:
            queries = molecules.read_queries(file, column, predictor.smiles_column, kept)
        table = io.StringIO(newline="")
        to = sys.stdout if out is None else table
        unread = molecules.write_predictions(predictor, queries, kept, to)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_text(out, table.getvalue())
            console.note(f"Wrote {len(queries):,} rows to {out}")
        if unread and unread == len(queries):
            console.fail(f"none of the {unread:,} molecules could be read")
        if unread:
            console.note(f"{unread:,} of {len(queries):,} molecules could not be read")


def _columns(text: str | None) -> list[str]:
    """The columns to keep."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"--keep names {twice!r} twice")
    return names


def _check_files(file: str | None, out: Path | None) -> None:
    if file not in (None, "-") and not Path(str(file)).exists():
        raise ValueError(f"FILE is {file!r}, which does not exist")
    if out is None:
        return
    if out.exists() and not out.is_file():
        raise ValueError(f"--out is {out}, expected a file")
    if file is not None and out.resolve() == Path(file).resolve():
        raise ValueError(f"--out is {out}, which is the input")
