"""`equipool predict`."""

from __future__ import annotations

import csv
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from equipool.cli import console
from equipool.cli.threads import read_threads, using_threads

if TYPE_CHECKING:
    from equipool.experiments.molecules.predictor import MoleculePredictor

AT_ONCE = 4096  # molecules in memory
MEASURED = 64  # molecules to choose the number of threads with
STANDARD_INPUT = "-"
TABLES = (".csv",)
LISTS = (".smi", ".txt")


@dataclass(frozen=True)
class Query:
    """A molecule to predict: where it is in the input, its SMILES, and cells to copy."""

    place: str
    smiles: str
    kept: tuple[str, ...] = ()


def predict(
    run: Annotated[Path, typer.Argument(help="directory of the run", metavar="RUN")],
    file: Annotated[
        str | None,
        typer.Argument(
            help="a .csv, or a .smi or .txt with one SMILES per line; - for stdin", metavar="FILE"
        ),
    ] = None,
    smiles: Annotated[
        list[str] | None,
        typer.Option(help="a molecule instead of a file; can be repeated", metavar="TEXT"),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="SMILES column of the .csv (default: as in training)", metavar="NAME"),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="input columns to copy to the output", metavar="A,B")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=".csv to write (default: stdout)", metavar="PATH")
    ] = None,
    which: console.Which = "best",
    device: console.Device = "auto",
    threads: console.Threads = "auto",
) -> None:
    """Predict properties of molecules with a trained network.

    Writes one row per molecule, in the order of the input: probabilities, or numbers in the units
    of the labels. Molecules that cannot be read have empty cells and are listed on stderr; if none
    can be read, the exit status is 1.
    """
    with console.plain_errors(console.WRONG_USE):
        if (file is None) == (not smiles):
            raise ValueError("give either a FILE or --smiles")
        if keep is not None and file is None:
            raise ValueError("--keep requires a FILE with columns")
        console.check_which(which)
        where, number = console.device_from_name(device), read_threads(threads)
        _check_files(file, out)
        kept = _columns(keep)
    with console.plain_errors():
        from equipool.training.checkpoint import write_atomically
        from equipool.training.devices import check_extras

        check_extras()
        predictor, usual_column = _load(run, which, where)
        if file is None:
            queries = [Query(f"row {row}", text) for row, text in enumerate(smiles or ())]
        else:
            queries = read_queries(file, column, usual_column, kept)
        some = [one.smiles for one in queries[:MEASURED]]
        table = io.StringIO(newline="")
        with using_threads(number, where, lambda: lambda: predictor.predict(some), report=_warn):
            unread = _write(predictor, queries, kept, sys.stdout if out is None else table)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, table.getvalue().encode())
            _warn(f"Wrote {len(queries):,} rows to {out}")
        if unread and unread == len(queries):
            console.fail(f"none of the {unread:,} molecules could be read")
        if unread:
            _warn(f"{unread:,} of {len(queries):,} molecules could not be read")


def _load(run: Path, which: str, device: str | None) -> tuple[MoleculePredictor, str]:
    """The predictor, and the column of SMILES that it was trained on."""
    from equipool.experiments.molecules.predictor import load_predictor
    from equipool.experiments.molecules.task import SMILES
    from equipool.training.folder import RunFolder

    config = RunFolder(run).read_config()
    if config["task"] != "molecules":
        raise ValueError(f"predict needs a molecules run; {run} is a {config['task']} run")
    column = config["fields"].get("smiles") or SMILES
    return load_predictor(run, which, device=device), column


def _columns(text: str | None) -> list[str]:
    """The columns to keep."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--keep names {name!r} twice")
    return names


def _check_files(file: str | None, out: Path | None) -> None:
    if file not in (None, STANDARD_INPUT) and not Path(str(file)).exists():
        raise ValueError(f"FILE is {file!r}, which does not exist")
    if out is None:
        return
    if out.exists() and not out.is_file():
        raise ValueError(f"--out is {out}, expected a file")
    if file is not None and out.resolve() == Path(file).resolve():
        raise ValueError(f"--out is {out}, which is the input")


def read_queries(
    file: str, column: str | None, usual_column: str, keep: Sequence[str] = ()
) -> list[Query]:
    """Molecules of a file: a table with names in its first line, or a list with one SMILES per
    line, of which only the first word is read. Files may be compressed with gzip.

    Args:
        file: .csv, .smi or .txt, optionally followed by .gz; `-` is a list on stdin.
        column: of the table.
        usual_column: if `column` is not given.
        keep: columns of the table to copy.
    """
    from equipool.experiments.molecules.data.table import open_text

    path = Path(file)
    ending = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    if file != STANDARD_INPUT and ending in TABLES:
        return list(_in_table(path, usual_column if column is None else column, keep))
    if file != STANDARD_INPUT and ending not in LISTS:
        endings = ", ".join((*TABLES, *LISTS))
        raise ValueError(f"FILE is {file!r}, expected a file that ends in {endings} or .gz, or -")
    for flag, given in (("--column", column), ("--keep", ",".join(keep) or None)):
        if given is not None:
            raise ValueError(f"{flag} is {given!r}, but {file} has no columns")
    if file == STANDARD_INPUT:
        return _in_lines(sys.stdin)
    try:
        with open_text(path) as lines:
            return _in_lines(lines)
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} cannot be read as text: {error}") from error


def _in_table(path: Path, column: str, keep: Sequence[str]) -> Iterator[Query]:
    from equipool.experiments.molecules.data.table import Complaints, MissingColumnError, Table

    table, complaints = Table(path), Complaints(path)
    try:
        at = table.position(column)
    except MissingColumnError as error:
        raise ValueError(f"{error}; choose the SMILES column with --column") from error
    kept = [table.position(name) for name in keep]
    for row in table.rows():
        if len(row.cells) != len(table.columns):
            complaints.add(row, f"expected {len(table.columns)} cells, found {len(row.cells)}")
            continue
        yield Query(str(row), row.cells[at], tuple(row.cells[one] for one in kept))
    complaints.raise_any()


def _in_lines(lines: Iterable[str]) -> list[Query]:
    return [
        Query(f"row {row} (line {row + 1})", next(iter(line.split()), ""))
        for row, line in enumerate(lines)
    ]


def _write(
    predictor: MoleculePredictor, queries: Sequence[Query], keep: Sequence[str], out: TextIO
) -> int:
    """Write the table; the number of molecules that could not be read."""
    from rich.console import Console
    from rich.progress import Progress

    from equipool.training.progress import columns

    writer = csv.writer(out, lineterminator="\n")
    written = ["smiles", *predictor.label_names]
    writer.writerow([*(f"given {name}" if name in written else name for name in keep), *written])
    unread = 0
    bars = Progress(
        *columns(), console=Console(stderr=True), refresh_per_second=4,
        redirect_stdout=False,  # the table may go there
        disable=len(queries) <= AT_ONCE,
    )  # fmt: skip
    with bars:
        bar = bars.add_task("molecules", total=len(queries))
        for first in range(0, len(queries), AT_ONCE):
            unread += _write_some(predictor, queries[first : first + AT_ONCE], writer)
            bars.update(bar, completed=min(first + AT_ONCE, len(queries)))
    return unread


def _write_some(predictor: MoleculePredictor, queries: Sequence[Query], writer: Any) -> int:
    found = predictor.predict([one.smiles for one in queries])
    unread = {problem.row for problem in found.problems if not problem.kept}
    for row, (one, values) in enumerate(zip(queries, found.values.numpy(), strict=True)):
        # str gives as few digits as identify the number
        cells = ("" if row in unread else str(value) for value in values)
        writer.writerow([*one.kept, one.smiles, *cells])
    for problem in found.problems:
        kept = " (predicted nevertheless)" if problem.kept else ""
        _warn(f"{queries[problem.row].place}: {problem.smiles!r}: {problem.reason}{kept}")
    return len(unread)


def _warn(text: str) -> None:
    typer.echo(text, err=True)


app = console.single_command(predict)
