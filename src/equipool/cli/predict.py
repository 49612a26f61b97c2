"""`equipool predict`."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from equipool.cli import bags, console


@dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of `equipool predict`.

    Args:
        out: file to write (default: stdout).
        unknown: bags: categories that training did not have: stop, or treat as no category.
        column: molecules: SMILES column of the .csv (default: as in training).
        keep: molecules: input columns to copy to the output.
        which: molecules: best or last checkpoint.
        device: cpu, cuda, cuda:1, ... or auto.
        threads: CPU threads.
    """

    out: Path | None = None
    unknown: Literal["error", "ignore"] = "error"
    column: str | None = None
    keep: bags.Names | None = None
    which: Literal["best", "last"] = "best"
    device: str = "auto"
    threads: console.Threads = 1


def predict(
    model: Annotated[Path, typer.Argument(
        help="file of a model (equipool fit) or directory of a molecules run", metavar="MODEL",
        exists=True)],
    file: Annotated[str | None, typer.Argument(
        help="a table of bags; or molecules: a .csv, or a .smi or .txt with one SMILES per line, "
             "- for stdin", metavar="FILE")] = None,
    smiles: Annotated[list[str] | None, typer.Option(
        help="molecules: SMILES instead of a file; can be repeated", metavar="TEXT")] = None,
    *, options: Options,
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
        if file not in (None, "-") and not Path(str(file)).is_file():
            raise ValueError(f"FILE is {file!r}, which does not exist")
        bags.check_output(options.out, file)
        if model.is_file():
            given = {"smiles": smiles, "column": options.column, "keep": options.keep}
            for name in (name for name, value in given.items() if value is not None):
                raise ValueError(f"--{name} is for molecules; {model} was trained on bags")
            if file is None:
                raise ValueError("FILE is missing: give a table of bags")
    if model.is_file():
        _predict_bags(model, Path(str(file)), options)
    else:
        _predict_molecules(model, file, smiles, options)


def _predict_bags(model: Path, table: Path, options: Options) -> None:
    with console.plain_errors(console.WRONG_USE):
        bags.check_ending(options.out)
        estimator = bags.load_model(model, options.device, options.threads)
    with console.plain_errors():
        bags.write_table(estimator.predict_table(table, unknown=options.unknown), options.out)


def _predict_molecules(
    run: Path, file: str | None, smiles: list[str] | None, options: Options
) -> None:
    out, keep = options.out, list(options.keep or ())
    with console.plain_errors(console.WRONG_USE):
        if (file is None) == (smiles is None):
            raise ValueError("give either a FILE or --smiles")
        if keep and file is None:
            raise ValueError("--keep requires a FILE with columns")
        device = console.choose_device(options.device, options.threads)
    with console.plain_errors():
        from equipool.experiments.molecules import predictor as molecules
        from equipool.files import write_text

        predictor = molecules.load_predictor(run, options.which, device=device)
        if file is None:
            queries = [[text] for text in smiles or ()]
        else:
            queries = molecules.read_queries(file, options.column, predictor.smiles_column, keep)
        table = io.StringIO(newline="")
        unread = molecules.write_predictions(
            predictor, queries, keep, sys.stdout if out is None else table
        )
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_text(out, table.getvalue())
            console.note(f"Wrote {len(queries):,} rows to {out}")
        if unread and unread == len(queries):
            console.fail(f"none of the {unread:,} molecules could be read")
        if unread:
            console.note(f"{unread:,} of {len(queries):,} molecules could not be read")
