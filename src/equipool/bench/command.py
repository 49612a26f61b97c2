"""`equipool bench` and its subcommands: flags, checks and exit codes, and nothing else.

Everything that imports torch is imported by the commands themselves, so that --help is fast.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    import torch

    from equipool.bench.record import Record

app = typer.Typer(help="Time the layer and its alternatives.", invoke_without_command=True)

PRESETS = {
    "quick": "the layer on a CPU, in two minutes",
    "layer": "a step of the layer over the number of sets",
    "steps": "time and memory over the number of inner steps",
    "elements": "one set of ten to a million elements",
    "width": "time and memory over the width",
    "gin": "a training step of a graph network",
    "median": "a training step of the median experiment",
}
MODES = ("inference", "training")

Device = Annotated[str, typer.Option(help="cpu, cuda or auto", metavar="NAME")]
Out = Annotated[
    Path | None, typer.Option(help="write the record to this JSON file", metavar="PATH")
]
Commit = Annotated[
    str | None,
    typer.Option(help="commit to record when not in a git checkout", metavar="HASH"),
]
Names = Annotated[
    list[str] | None, typer.Option(help="only this one; can be repeated", metavar="NAME")
]
Records = Annotated[
    list[Path], typer.Argument(exists=True, dir_okay=False, help="records of `equipool bench`")
]


@app.callback()
def bench(
    context: typer.Context,
    preset: Annotated[
        str,
        typer.Option(
            help="; ".join(f"{name}: {about}" for name, about in PRESETS.items()), metavar="NAME"
        ),
    ] = "quick",
    device: Device = "auto",
    path: Names = None,
    precision: Names = None,
    mode: Names = None,
    compiled: Annotated[bool, typer.Option("--compile", help="add the compiled layer")] = False,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Time the layer and its alternatives, print a table and write a record."""
    if context.invoked_subcommand is not None:
        return
    from equipool.bench import presets
    from equipool.bench.measure import run_preset
    from equipool.bench.paths import PATHS
    from equipool.bench.record import git_commit
    from equipool.bench.steps import PRECISIONS
    from equipool.bench.terminal import make_console, show

    for option, values, known in (
        ("preset", [preset], presets.PRESETS), ("path", path, PATHS),
        ("precision", precision, PRECISIONS), ("mode", mode, MODES),
    ):  # fmt: skip
        _check_names(option, values, known)
    chosen = presets.PRESETS[preset]
    chosen = (chosen.with_compiled() if compiled else chosen).only(
        path or (), cast(Any, precision or ()), cast(Any, mode or ())
    )
    where, console = _device(device), make_console()
    _check_out(out)
    command = _command(
        f"equipool bench --preset {preset} --device {where.type}",
        {"path": path, "precision": precision, "mode": mode}, compiled and "--compile",
    )  # fmt: skip
    record = run_preset(chosen, where, command, commit or git_commit(), console, out)
    show(record, console)
    if any(row.status == "disagrees" for row in record.rows):
        raise typer.Exit(1)


@app.command()
def paths() -> None:
    """List what can be timed, for --path."""
    from equipool.bench.paths import PATHS

    for path in PATHS.values():
        typer.echo(f"{path.name:20} {path.description}")


@app.command()
def plot(
    records: Records,
    out: Annotated[Path, typer.Option(help="output directory", metavar="PATH")] = Path("figures"),
) -> None:
    """Draw records as performance-*.svg."""
    from equipool.bench.plots import draw_record

    for record in _read(records):
        for drawn in draw_record(record, out):
            typer.echo(drawn)


@app.command("show")
def show_records(records: Records) -> None:
    """Print records as tables."""
    from equipool.bench.terminal import make_console, show

    for record in _read(records):
        show(record, make_console())


@app.command()
def profile(
    sets: Annotated[
        list[int] | None, typer.Option(help="number of sets; can be repeated", metavar="INT")
    ] = None,
    precision: Names = None,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Show where a training step of the layer spends its time on a GPU."""
    from equipool.bench.cases import Case
    from equipool.bench.measure import profile_layer
    from equipool.bench.record import git_commit
    from equipool.bench.steps import PRECISIONS
    from equipool.bench.terminal import make_console
    from equipool.environment import hardware, now, versions

    device = _device("cuda")
    _check_names("precision", precision, PRECISIONS)
    _check_out(out)
    rows = []
    for number, kind in product(sets or [8, 256, 2048], cast(Any, precision) or PRECISIONS):
        spent = profile_layer(Case(number, 26), kind, device)
        rows.append({"sets": number, "precision": kind, "microseconds": spent})
        make_console().print(rows[-1])
    if out is not None:
        about = {"date": now(), "commit": commit or git_commit(), "versions": versions()}
        out.write_text(json.dumps({**about, "hardware": hardware(device), "rows": rows}, indent=1))


@app.command()
def gradients(
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="tiny sizes, as a test")] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="PART[,PART]", help="quality, cost, solvers, stopping or backward"),
    ] = None,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Measure accuracy and cost of each differentiation method, and the speed of each solver."""
    from equipool.bench.gradients import plan_for, run_plan, tables
    from equipool.bench.gradients_record import PARTS
    from equipool.bench.record import git_commit
    from equipool.bench.terminal import make_console

    where, console = _device(device), make_console()
    parts = [*PARTS] if only is None else only.split(",")
    _check_names("only", parts, PARTS)
    _check_out(out)
    command = _command(
        f"equipool bench gradients --device {where.type}", {},
        quick and "--quick", only is not None and f"--only {only}",
    )  # fmt: skip
    record = run_plan(plan_for(where, quick), where, command, commit or git_commit(), console, out,
                      cast(Any, parts))  # fmt: skip
    for table in tables(record):
        console.print(table)


@app.command()
def stability(
    device: Device = "auto",
    seeds: Annotated[int, typer.Option(min=1, help="networks per option", metavar="INT")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="training steps", metavar="INT")] = 1000,
    option: Names = None,
    setting: Names = None,
    quick: Annotated[bool, typer.Option("--quick", help="a few steps, as a test")] = False,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Count spikes in the training of the layer, with and without measures against them.

    A seed of an option takes about 15 seconds on a CPU. An interrupted run resumes from --out."""
    from equipool.bench.record import git_commit
    from equipool.bench.stability import QUICK, TRIALS, Plan, run_trials, table
    from equipool.bench.terminal import make_console

    _check_names("option", option, dict.fromkeys(trial.option.name for trial in TRIALS))
    _check_names("setting", setting, dict.fromkeys(trial.setting.name for trial in TRIALS))
    _check_out(out)
    where = _device(device)
    plan, size = (QUICK, "--quick") if quick else (
        Plan(seeds, steps), f"--seeds {seeds} --steps {steps}"
    )  # fmt: skip
    command = _command(
        f"equipool bench stability --device {where.type} {size}",
        {"option": option, "setting": setting},
    )
    trials = [trial for trial in TRIALS if trial.is_among(option, setting)]
    console = make_console()
    record = run_trials(trials, plan, where, command, commit or git_commit(), console, out)
    for chosen in dict.fromkeys(trial.setting for trial in trials):
        console.print(f"{chosen.name}: {chosen.description}")
        console.print(table(record, chosen.name))


def _read(files: Sequence[Path]) -> list[Record]:
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


def _check_names(option: str, values: Sequence[str] | None, known: Collection[str]) -> None:
    for value in values or ():
        if value not in known:
            raise typer.BadParameter(f"--{option} is {value}, expected one of {', '.join(known)}")


def _check_out(out: Path | None) -> None:
    """Fail before measuring if the record could not be written."""
    from equipool.training import StorageError, check_writable

    if out is not None:
        try:
            check_writable(out)
        except StorageError as error:
            raise typer.BadParameter(f"--out: {error}") from error


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--device is {name}, expected cpu, cuda or auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("--device is cuda, but no CUDA device was found")
    return torch.device(name)


def _command(start: str, repeated: dict[str, list[str] | None], *switches: str | bool) -> str:
    """The command that repeats the run."""
    parts = [start]
    for option, values in repeated.items():
        parts += [
            f'--{option} "{value}"' if " " in value else f"--{option} {value}"
            for value in values or ()
        ]
    return " ".join([*parts, *(switch for switch in switches if isinstance(switch, str))])
