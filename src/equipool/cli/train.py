"""`equipool train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from equipool.cli.errors import STOPPED, WRONG_USE, plain_errors
from equipool.cli.flags import TASK, TRAINING, check_apart
from equipool.cli.per_task import Request, task_commands
from equipool.cli.places import (
    DataDir,
    Device,
    check_seconds,
    default_folder,
    device_from_name,
)
from equipool.cli.settings import (
    Values,
    base_values,
    build,
    run_name,
    saved_values,
    with_values,
)
from equipool.cli.words import command_line, print_record, say
from equipool.environment import leads
from equipool.experiments.data_folder import using_data_folder
from equipool.training import Record, train

ABOUT = "Train a network. A run can be stopped and gone on with at any time."


@dataclass(frozen=True)
class TrainOptions:
    """Options of `equipool train` that are the same for all tasks."""

    out: Annotated[Path | None, typer.Option(help="the run's directory; by default runs/...")] = (
        None
    )
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="go on with the run in --out, whose settings need not be given again; "
            "where there is none, start it",
        ),
    ] = False
    preset: Annotated[
        str | None, typer.Option(help="settings to start from; flags change them")
    ] = None
    device: Device = "auto"
    record: Annotated[
        Path | None, typer.Option(help="write the record to this JSON file as well")
    ] = None
    max_seconds: Annotated[
        float | None, typer.Option(help="stop after so many seconds, and save")
    ] = None
    data_dir: DataDir = None


def run(request: Request, options: TrainOptions) -> None:
    """Train, print what came of it."""
    kind, out = request.kind, options.out
    with plain_errors(WRONG_USE):
        check_seconds(options.max_seconds)
        values = _values(request, options)
        task, config = build(kind, values)
        device = device_from_name(options.device)
        if out is None:
            out = default_folder(kind.name, options.preset) / run_name(kind, values, {})
    with plain_errors(), using_data_folder(options.data_dir):
        found = train(
            task,
            config,
            out,
            options.resume,
            device,
            stop_after=options.max_seconds,
            how_to_resume=_how(kind.name, options, out),
        )
        _conclude(found, out, options.record)


def _values(request: Request, options: TrainOptions) -> Values:
    """The preset's, or those of the run that is gone on with, and what the flags say."""
    values = base_values(request.kind, options.preset)
    if options.resume and options.preset is None and options.out is not None:
        values = saved_values(request.kind, options.out)
        check_apart(request.given, values[TASK])
    values = with_values(values, {flag: flag.read(text) for flag, text in request.given.items()})
    if options.resume and "steps" not in values[TRAINING]:
        raise ValueError(
            "--resume: say which run by --out"
            if options.out is None
            else f"--resume: there is no run of {request.kind.name} in {options.out} to go on with"
        )
    return values


def _how(task: str, options: TrainOptions, out: Path) -> str:
    device = None if options.device == "auto" else options.device
    given = {"--out": out, "--resume": True, "--device": device, "--record": options.record}
    return command_line(["train", task], given | {"--data-dir": options.data_dir})


def _conclude(found: Record, out: Path, file: Path | None) -> None:
    if not found.complete:
        raise typer.Exit(STOPPED)
    print_record(found)
    if file is not None and leads():
        found.write(file)
    say(f"The run is in {out}" + (f", its record in {file}" if file is not None else ""))


app = task_commands(ABOUT, TrainOptions, run)
