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
)  # fmt: skip
from equipool.cli.threads import read_threads, training_step, using_threads

if TYPE_CHECKING:
    from equipool.training import Record

ABOUT = """Train a network. Interrupted runs resume with --resume.

On Ctrl-C, SIGTERM or --max-seconds the run saves and prints the command that resumes it."""
RESUME = (
    "resume the run in --out with its saved settings; start it if there is none. "
    "A larger --steps extends a finished run"
)


@dataclass(frozen=True)
class TrainOptions(console.RunOptions):
    """Options of `equipool train`."""

    resume: Annotated[bool, console.option(RESUME, "", "--resume")] = False
    record: Annotated[
        Path | None, console.option("also write the summary to this JSON file", "PATH")
    ] = None


def run(request: Request, options: TrainOptions) -> None:
    """Train, and print the results."""
    with console.plain_errors():
        from equipool import training
        from equipool.experiments.data import using_data_folder
        from equipool.training.devices import check_extras

    with console.plain_errors(console.WRONG_USE):
        check_extras()
        options.check()
        values = _values(request, options)
        task, config = build(request.task, values)
        device, threads = console.device_from_name(options.device), read_threads(options.threads)
        out = options.out
        if out is None:
            name = run_name(request.task, values, {})
            out = console.default_folder(request.task, options.preset) / name
    given = {"--out": out, "--resume": True} | options.words("out", "preset", "max_seconds")
    how = console.command_line(["train", request.task], given)
    with console.plain_errors(), using_data_folder(options.data_dir):
        if options.record is not None:
            training.check_writable(options.record)
        with using_threads(threads, device, lambda: training_step(task, config), out):
            found = training.train(
                task, config, out, options.resume, device,
                stop_after=options.max_seconds, how_to_resume=how,
            )  # fmt: skip
        _conclude(found, out, options)


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


def _conclude(found: Record, out: Path, options: TrainOptions) -> None:
    if not found.complete:
        raise typer.Exit(console.STOPPED)
    console.print_record(found)
    if options.record is not None and console.is_leader():
        found.write(options.record)
    written = "" if options.record is None else f", its summary in {options.record}"
    console.report_line(f"The run is in {out}{written}")
    if found.failed:
        console.fail(f"the run failed: {found.warning}")
    if found.config["training"]["schedule"] == "constant":
        longer = {"--out": out, "--resume": True, "--steps": 2 * found.steps}
        how = console.command_line(["train", found.task], longer)
        console.report_line(f"To train longer: {how}")


app = task_commands(ABOUT, TrainOptions, run)
