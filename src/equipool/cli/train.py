"""`equipool train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipool.cli import console
from equipool.cli.flags import TASK, TRAINING, check_apart
from equipool.cli.groups import Request, task_commands
from equipool.cli.settings import (
    Values,
    base_values,
    build,
    run_name,
    saved_values,
    with_values,
)

if TYPE_CHECKING:
    from equipool.training import Record

ABOUT = """Train a network. Interrupted runs resume with --resume.

On Ctrl-C, SIGTERM or --max-seconds the run saves and prints the command that resumes it."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of `equipool train` that are the same for all tasks."""

    out: Annotated[
        Path | None, console.option("directory of the run (default: runs/TASK/NAME)", "PATH")
    ] = None
    resume: Annotated[
        bool,
        console.option(
            "resume the run in --out with its saved settings; start it if there is none. "
            "A larger --steps extends a finished run",
            "",
            "--resume",
        ),
    ] = False
    preset: console.PresetName = None
    device: console.Device = "auto"
    record: Annotated[
        Path | None, console.option("also write the summary to this JSON file", "PATH")
    ] = None
    max_seconds: console.MaxSeconds = None
    data_dir: console.DataDir = None


def run(request: Request, options: TrainOptions) -> None:
    """Train, and print the results."""
    with console.plain_errors():
        from equipool import training
        from equipool.experiments.data import using_data_folder

    with console.plain_errors(console.WRONG_USE):
        console.check_seconds(options.max_seconds)
        values = _values(request, options)
        task, config = build(request.task, values)
        device = console.device_from_name(options.device)
        out = options.out
        if out is None:
            name = run_name(request.task, values, {})
            out = console.default_folder(request.task, options.preset) / name
    with console.plain_errors(), using_data_folder(options.data_dir):
        if options.record is not None:
            check_writable(options.record)
        found = training.train(
            task,
            config,
            out,
            options.resume,
            device,
            stop_after=options.max_seconds,
            how_to_resume=_how_to_resume(request.task, options, out),
        )
        _conclude(found, out, options)


def check_writable(file: Path) -> None:
    """Refuse a file that cannot be written, before the training that would be lost."""
    if file.is_dir():
        raise ValueError(f"--record is {file}, which is a directory: expected a file")
    existing = next(folder for folder in file.absolute().parents if folder.exists())
    if not existing.is_dir():
        raise ValueError(f"--record is {file}, but {existing} is not a directory")
    probe = existing / f".{file.name}.writable"
    try:
        if file.exists():
            file.open("ab").close()
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(f"--record is {file}, which cannot be written: {error.strerror}") from error


def _values(request: Request, options: TrainOptions) -> Values:
    """The settings of the preset, or of the run that is resumed, changed by the flags."""
    values = base_values(request.task, options.preset)
    if options.resume and options.preset is None and options.out is not None:
        values = saved_values(request.task, options.out)
        if "steps" in values[TRAINING]:
            check_apart(request.given, values[TASK])
    values = with_values(values, {flag: flag.read(text) for flag, text in request.given.items()})
    if options.resume and "steps" not in values[TRAINING]:
        raise ValueError(
            "--resume requires --out, the directory of the run"
            if options.out is None
            else f"--resume: {options.out} has no run of {request.task}"
        )
    return values


def _how_to_resume(task: str, options: TrainOptions, out: Path) -> str:
    device = None if options.device == "auto" else options.device
    given = {"--out": out, "--resume": True, "--device": device, "--record": options.record}
    return console.command_line(["train", task], given | {"--data-dir": options.data_dir})


def _conclude(found: Record, out: Path, options: TrainOptions) -> None:
    if not found.complete:
        raise typer.Exit(console.STOPPED)
    console.print_record(found)
    if options.record is not None and console.is_leader():
        found.write(options.record)
    written = "" if options.record is None else f", its summary in {options.record}"
    console.report_line(f"The run is in {out}{written}")
    if has_failed(found):
        console.fail(
            f"the run failed: no evaluation gave a finite number ({found.skipped:,} steps skipped)"
        )
    if found.config["training"]["schedule"] == "constant":
        longer = {"--out": out, "--resume": True, "--steps": 2 * found.steps}
        console.report_line(
            f"To train longer: {console.command_line(['train', found.task], longer)}"
        )


def has_failed(record: Record) -> bool:
    """Whether nothing was learned: every step was skipped, or no evaluation gave a number."""
    return record.skipped >= record.steps or record.best is None


app = task_commands(ABOUT, TrainOptions, run)
