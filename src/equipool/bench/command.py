"""`equipool bench` and its subcommands: flags, checks and exit codes, and nothing else.

Everything that imports torch is imported by the commands themselves, so that --help is fast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from equipool.bench.record import Record

app = typer.Typer(
    help="Time the layer and its alternatives.", invoke_without_command=True, add_completion=False
)

PRESETS = {
    "quick": "the layer on a CPU, in two minutes",
    "plain": "the plain call, the captured step and PyTorch Geometric's layer, on a GPU",
    "layer": "one step of the layer for several numbers of sets",
    "steps": "time and memory for several numbers of inner steps",
    "elements": "one set of ten to a million elements",
    "width": "time and memory for several widths",
    "networks": "a training step of a graph network and of the median network",
}

Device = Annotated[str, typer.Option(help="cpu, cuda or auto", metavar="NAME")]
Out = Annotated[
    Path | None, typer.Option(help="write the record to this JSON file", metavar="PATH")
]
Commit = Annotated[
    str | None, typer.Option(help="commit to record when not in a git checkout", metavar="HASH")
]


def only(what: str) -> Any:
    """An option that can be repeated."""
    return typer.Option(help=f"time only {what}; can be repeated", metavar="NAME")


Paths = Annotated[list[str] | None, only("this path of `equipool bench paths`")]
Precisions = Annotated[list[str] | None, only("float32, tf32 or bf16")]
Modes = Annotated[list[str] | None, only("training or inference")]
Records = Annotated[
    list[Path], typer.Argument(exists=True, dir_okay=False, help="records of `equipool bench`")
]
PresetName = Annotated[str, typer.Option(help="; ".join(map(": ".join, PRESETS.items())),
                                         metavar="NAME")]  # fmt: skip


@app.callback()
def bench(
    context: typer.Context, preset: PresetName = "quick", device: Device = "auto",
    path: Paths = None, precision: Precisions = None, mode: Modes = None,
    compiled: Annotated[bool, typer.Option("--compile", help="add the compiled layer")] = False,
    out: Out = None, commit: Commit = None,
) -> None:  # fmt: skip
    """Time the layer and its alternatives, print a table and write a record."""
    if context.invoked_subcommand is not None:
        return
    from equipool.bench import cases
    from equipool.bench.measure import run_preset
    from equipool.bench.paths import PATHS
    from equipool.bench.record import git_commit
    from equipool.bench.terminal import make_console, show

    check_names("preset", [preset], cases.PRESETS)
    check_names("path", path, PATHS)
    check_names("precision", precision, cases.PRECISIONS)
    check_names("mode", mode, cases.BOTH)
    check_out(out)
    chosen = cases.PRESETS[preset]
    every = (chosen.with_compiled() if compiled else chosen).items()
    items = cases.select(every, path, precision, mode)
    where, console = choose_device(device), make_console()
    flags = {"path": path, "precision": precision, "mode": mode, "compile": compiled}
    command = full_command(f"equipool bench --preset {preset} --device {where.type}", flags)
    record = run_preset(chosen, items, where, command, commit or git_commit(), console, out)
    show(record, console)
    if any(row.status == "disagrees" for row in record.rows):
        raise typer.Exit(1)


@app.command()
def paths() -> None:
    """List the names that --path accepts."""
    from equipool.bench.paths import PATHS

    for path in PATHS.values():
        typer.echo(f"{path.name:20} {path.description}")


@app.command("show")
def show_records(records: Records) -> None:
    """Print records as tables."""
    from equipool.bench.terminal import make_console, show

    for record in read_records(records):
        show(record, make_console())


def read_records(files: Sequence[Path]) -> list[Record]:
    """The records with timings; others are named on stderr and skipped."""
    from equipool.bench.record import OtherRecordError, read_record

    found = []
    for file in files:
        try:
            found.append(read_record(file))
        except OtherRecordError as error:
            typer.echo(f"Skipped: {error}", err=True)
    if not found:
        raise typer.BadParameter("expected at least one record of `equipool bench`")
    return found


def check_names(option: str, values: Sequence[str] | None, known: Collection[str]) -> None:
    """Refuse an unknown name with a list of those that exist."""
    for value in values or ():
        if value not in known:
            raise typer.BadParameter(f"--{option} is {value}, expected one of {', '.join(known)}")


def check_out(out: Path | None) -> None:
    """Fail before measuring if the record could not be written."""
    from equipool.training import StorageError, check_writable

    if out is not None:
        try:
            check_writable(out)
        except StorageError as error:
            raise typer.BadParameter(f"--out: {error}") from error


def choose_device(name: str) -> torch.device:
    from equipool.training.devices import resolve_device

    try:
        return resolve_device(None if name == "auto" else name)
    except ValueError as error:
        raise typer.BadParameter(f"--{error}") from error


def full_command(start: str, flags: dict[str, Any]) -> str:
    """The command that repeats a run. A list is a repeated option, True a switch; None and False
    are left out."""
    parts = [start]
    for name, value in flags.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                parts.append(f"--{name}")
            elif one not in (None, False):
                parts.append(f'--{name} "{one}"' if " " in str(one) else f"--{name} {one}")
    return " ".join(parts)
