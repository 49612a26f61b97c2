"""`equipool predict`."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich import progress
from rich.console import Console

from equipool.bars import columns
from equipool.cli.errors import WRONG_USE, plain_errors
from equipool.cli.evaluate import WHICH
from equipool.cli.places import Device, device_from_name
from equipool.cli.smiles import STANDARD_INPUT, Asked, given_smiles, read_smiles
from equipool.experiments.molecules.predictor import MoleculePredictor, load_predictor
from equipool.experiments.molecules.task import SMILES
from equipool.training.devices import check_extras
from equipool.training.folder import RunFolder

AT_ONCE = 4096  # molecules that are in memory


def predict(
    run: Annotated[Path, typer.Argument(help="the run's directory")],
    file: Annotated[
        str | None,
        typer.Argument(help="a .csv, or one SMILES a line in a .smi, a .txt or the input, -"),
    ] = None,
    smiles: Annotated[
        list[str] | None, typer.Option(help="a molecule, instead of a file; can be repeated")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="of SMILES in the .csv; by default as in training")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="further columns of the .csv that the table shall have, as A,B"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the .csv to write; by default the standard output")
    ] = None,
    which: Annotated[str, typer.Option(help="best or last checkpoint")] = "best",
    device: Device = "auto",
) -> None:
    """Predict labels of molecules with a run's network: probabilities, or numbers in the labels'
    own units, as a table with a row for each molecule in the order given. Cells are empty in the
    rows of molecules that cannot be read, which are listed beside."""
    with plain_errors(WRONG_USE):
        if (file is None) == (not smiles):
            raise ValueError("expected either a FILE or --smiles")
        if keep is not None and file is None:
            raise ValueError("--keep is for the columns of a FILE")
        if which not in WHICH:
            raise ValueError(f"--which is {which!r}, expected one of {', '.join(WHICH)}")
        where = device_from_name(device)
        _check_file(file)
        _check_out(out, file)
    with plain_errors():
        check_extras()
        predictor = load_predictor(run, which, device=where)
        usual = RunFolder(run).read_config()["fields"]["smiles"] or SMILES
        kept = _kept(keep)
        asked = (
            given_smiles(smiles or ()) if file is None else read_smiles(file, column, usual, kept)
        )
        with _destination(out) as destination:
            unread = _write(predictor, asked, kept, destination)
        if unread:
            _tell(f"{unread:,} of {len(asked):,} molecules cannot be read: their cells are empty")
        if out is not None:
            _tell(f"{len(asked):,} rows are in {out}")


def _kept(text: str | None) -> list[str]:
    """The columns to keep."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--keep names {name!r} twice")
    return names


def _check_file(file: str | None) -> None:
    if file not in (None, STANDARD_INPUT) and not Path(str(file)).exists():
        raise ValueError(f"FILE is {file!r}, which is not there: check the path")


def _check_out(out: Path | None, file: str | None) -> None:
    if out is None:
        return
    if out.exists() and not out.is_file():
        raise ValueError(f"--out is {out}, expected a file")
    if file is not None and out.resolve() == Path(file).resolve():
        raise ValueError(f"--out is {out}, which is the file to read")


@contextmanager
def _destination(out: Path | None) -> Iterator[TextIO]:
    """Where the table goes: a file is whole or not there."""
    if out is None:
        yield sys.stdout
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            yield file
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(
    predictor: MoleculePredictor, asked: Sequence[Asked], kept: Sequence[str], destination: TextIO
) -> int:
    """Write the table; how many molecules could not be read."""
    writer = csv.writer(destination, lineterminator="\n")
    written = [SMILES, *predictor.label_names]
    given = [f"given {name}" if name in written else name for name in kept]
    writer.writerow([*given, *written])
    unread = 0
    for some in _with_bar([asked[i : i + AT_ONCE] for i in range(0, len(asked), AT_ONCE)]):
        found = predictor.predict([one.smiles for one in some])
        nothing = {problem.row for problem in found.problems if not problem.kept}
        for row, (one, values) in enumerate(zip(some, found.values.numpy(), strict=True)):
            # as few digits as tell the number from all others
            cells = ("" if row in nothing else str(value) for value in values)
            writer.writerow([*one.kept, one.smiles, *cells])
        for problem in found.problems:
            kept = " (predicted all the same)" if problem.kept else ""
            _tell(f"{some[problem.row].place}: {problem.smiles!r}: {problem.reason}{kept}")
        unread += len(nothing)
    return unread


def _with_bar(parts: Sequence[Sequence[Asked]]) -> Iterable[Sequence[Asked]]:
    """The parts, with a bar for the molecules that are done where there is more than one."""
    if len(parts) < 2:
        yield from parts
        return
    shown = progress.Progress(
        *columns(),
        console=Console(stderr=True),
        refresh_per_second=4,
        redirect_stdout=False,  # that is where the table may go
    )
    with shown as bars:
        bar = bars.add_task("molecules", total=sum(len(part) for part in parts))
        for part in parts:
            yield part
            bars.update(bar, advance=len(part))


def _tell(text: str) -> None:
    typer.echo(text, err=True)
