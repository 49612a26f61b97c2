"""`equipool bench` and its commands."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, cast

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from equipool.bench.cases import Case, Mode, Precision
from equipool.bench.goals import find_goals
from equipool.bench.gradients_record import PARTS, Part
from equipool.bench.paths import PATHS
from equipool.bench.precision import PRECISIONS
from equipool.bench.presets import BOTH, PRESETS, Preset
from equipool.bench.record import OtherRecordError, Record, git_commit, read_record
from equipool.bench.roofline import Rates, measure_rates
from equipool.bench.run import measure_items, now
from equipool.bench.stability import stability
from equipool.bench.table import notes, tables
from equipool.environment import hardware, versions

app = typer.Typer(
    help="Time the layer beside what one would use instead.", invoke_without_command=True
)

app.command()(stability)

PRESET_HELP = "; ".join(f"{preset.name}: {preset.description}" for preset in PRESETS.values())


@app.callback()
def bench(
    context: typer.Context,
    preset: Annotated[str, typer.Option(help=PRESET_HELP)] = "quick",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    path: Annotated[list[str] | None, typer.Option(help="only this path; repeatable")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="only this one; repeatable")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="only this one; repeatable")] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile as well")] = False,
    out: Annotated[Path | None, typer.Option(help="write the record to this JSON file")] = None,
    commit: Annotated[str | None, typer.Option(help="where the code is no git checkout")] = None,
) -> None:
    """Measure, print a table, write a record."""
    if context.invoked_subcommand is not None:
        return
    chosen = _choose(preset, path, precision, mode, compiled)
    where = _device(device)
    console = make_console()
    record = run(chosen, where, _command(chosen, where, path, precision, mode, compiled),
                 commit or git_commit(), console, out)  # fmt: skip
    show(record, console)
    if any(row.status == "disagrees" for row in record.rows):
        raise typer.Exit(1)


def _read(files: Sequence[Path]) -> list[Record]:
    """The records of timings among these; those of other commands are named and left out."""
    found = []
    for file in files:
        try:
            found.append(read_record(file))
        except OtherRecordError as error:
            typer.echo(f"Left out: {error}", err=True)
    if not found:
        raise typer.BadParameter("expected a record of `equipool bench` at least")
    return found


@app.command()
def plot(
    records: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False)],
    out: Annotated[Path, typer.Option(help="folder to draw into")] = Path("docs/figures"),
) -> None:
    """Draw records as performance-*.svg."""
    from equipool.bench.plots import draw_record

    for record in _read(records):
        for drawn in draw_record(record, out):
            typer.echo(drawn)


@app.command("show")
def show_records(
    records: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False)],
) -> None:
    """Print records as tables."""
    for record in _read(records):
        show(record, make_console())


@app.command()
def goals(
    records: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False)],
) -> None:
    """Compare records with what the layer is held to; exit 1 where it falls short."""
    found = find_goals(_read(records))
    table = Table("goal", "target", "found", "")
    for goal in found:
        table.add_row(goal.name, goal.target, goal.found, "reached" if goal.reached else "missed")
    make_console().print(table)
    if not all(goal.reached for goal in found):
        raise typer.Exit(1)


@app.command()
def profile(
    sets: Annotated[list[int] | None, typer.Option(help="number of sets; repeatable")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="repeatable")] = None,
    out: Annotated[Path | None, typer.Option(help="write the table to this JSON file")] = None,
    commit: Annotated[str | None, typer.Option(help="where the code is no git checkout")] = None,
) -> None:
    """Show where a training step of the layer spends its time on a GPU."""
    from equipool.bench.profile import profile_layer

    device = _device("cuda")
    _check("precision", precision, PRECISIONS)
    kinds = cast(list[Precision], precision or list(PRECISIONS))
    rows = []
    for number, kind in product(sets or [8, 256, 2048], kinds):
        spent = profile_layer(Case(number, 26), kind, device)
        rows.append({"sets": number, "precision": kind, "microseconds": spent})
        make_console().print(rows[-1])
    if out is not None:
        about = {"date": now(), "commit": commit or git_commit(), "versions": versions()}
        out.write_text(json.dumps({**about, "hardware": hardware(device), "rows": rows}, indent=1))


@app.command()
def gradients(
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="tiny sizes, to see that it runs")] = False,
    only: Annotated[
        str | None, typer.Option(metavar="PART[,PART]", help=f"of {', '.join(PARTS)}")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write the record to this JSON file")] = None,
    commit: Annotated[str | None, typer.Option(help="where the code is no git checkout")] = None,
) -> None:
    """Measure how true and how dear each way to differentiate is, and how fast each solver."""
    from equipool.bench.gradients import plan_for, run_plan
    from equipool.bench.gradients_table import SECTIONS

    where, console = _device(device), make_console()
    parts: list[str] = [*PARTS] if only is None else only.split(",")
    _check("only", parts, PARTS)
    command = f"equipool bench gradients --device {where.type}" + " --quick" * quick
    command += "" if only is None else f" --only {only}"
    record = run_plan(plan_for(where, quick), where, command, commit or git_commit(), console, out,
                      cast(list[Part], parts))  # fmt: skip
    for name, section in SECTIONS.items():
        if getattr(record, name):
            console.print(section({"": record}), markup=False, highlight=False, soft_wrap=True)


def make_console() -> Console:
    """Wide enough for the tables where nobody says how wide it is."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def run(
    preset: Preset,
    device: torch.device,
    command: str,
    commit: str,
    console: Console,
    out: Path | None = None,
) -> Record:
    """Go through a preset with a progress bar. What has been measured is written to `out` at once,
    so that a run which is cut off leaves a record, too."""
    items = preset.items()
    precisions = [p for p in PRECISIONS if any(item.precision == p for item in items)]
    if device.type != "cuda":
        precisions = [p for p in precisions if p != "tf32"]
    rates: dict[Precision, Rates] = {p: measure_rates(p, device) for p in precisions}
    record = Record(preset.name, preset.axis, command, now(), commit, versions(), hardware(device),
                    list(rates.values()), rows=[])  # fmt: skip
    columns = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(items))
        measured = measure_items(items, device, preset.budget, rates)
        for item in items:
            progress.update(task, description=f"{item.path} {item.precision} {item.mode}")
            record.rows.append(next(measured))
            if out is not None:
                record.write(out)
            progress.advance(task)
    return record


def show(record: Record, console: Console) -> None:
    """Print a record: where, the rates, the tables, and what was not timed."""
    machine = record.hardware.get("gpu", record.hardware["cpu"])
    console.print(f"{machine}, torch {record.versions['torch']}, commit {record.commit}")
    for rates in record.rates:
        console.print(
            f"{rates.precision}: {rates.square_tflops:.3g} TFLOP/s in large products, "
            f"{rates.shaped_tflops:.3g} in [N, 600] @ [600, 332]; "
            f"copies at {rates.copy_gb_per_s:,.0f} GB/s"
        )
    for table in tables(record):
        console.print(table)
    for note in notes(record.rows):
        console.print(f"not timed: {note}", markup=False, highlight=False)


def _choose(
    name: str,
    paths: list[str] | None,
    precisions: list[str] | None,
    modes: list[str] | None,
    compiled: bool,
) -> Preset:
    _check("preset", [name], PRESETS)
    _check("path", paths, PATHS)
    _check("precision", precisions, PRECISIONS)
    _check("mode", modes, BOTH)
    preset = PRESETS[name].with_compiled() if compiled else PRESETS[name]
    return preset.only(
        paths or (), cast(list[Precision], precisions or []), cast(list[Mode], modes or [])
    )


def _check(option: str, values: list[str] | None, allowed: Collection[str]) -> None:
    for value in values or ():
        if value not in allowed:
            raise typer.BadParameter(f"--{option} is {value}, expected one of {', '.join(allowed)}")


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--device is {name}, expected cpu, cuda or auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("--device is cuda, and there is none here")
    return torch.device(name)


def _command(
    preset: Preset,
    device: torch.device,
    paths: list[str] | None,
    precisions: list[str] | None,
    modes: list[str] | None,
    compiled: bool,
) -> str:
    """The command that repeats the run."""
    parts = [f"equipool bench --preset {preset.name} --device {device.type}"]
    for option, values in (("path", paths), ("precision", precisions), ("mode", modes)):
        parts += [f"--{option} {value}" for value in values or ()]
    return " ".join(parts + ["--compile"] * compiled)
