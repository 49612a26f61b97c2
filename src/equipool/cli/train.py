"""`equipool train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from equipool.cli import console, tasks
from equipool.cli.tasks import Request, RunOptions, Values

if TYPE_CHECKING:
    from equipool.training import Record

ABOUT = """Train a network. Interrupted runs resume with --resume.

On Ctrl-C, SIGTERM or --max-seconds the run saves and prints the command that resumes it."""


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Flags of `equipool train`.

    Args:
        resume: resume the run in --out with its saved settings; start it if there is none. A
            larger --steps extends a finished run.
    """

    resume: bool = False


def run(request: Request, options: Options) -> None:
    with console.plain_errors(console.WRONG_USE):
        from equipool import training
        from equipool.experiments.common import using_data_folder
        from equipool.training.devices import check_extras

        check_extras()
        given = {name: request.settings[name].read(text) for name, text in request.given.items()}
        values = _start(request, options) | given
        task, config = tasks.build(request.task, values)
        tasks.check_kept(given, task)
        device = console.choose_device(options.device, options.threads)
        out = options.out
        if out is None:
            folder = tasks.default_folder(request.task, options)
            out = folder / tasks.run_name(task, values, ())
    typed = {"--out": out, "--resume": True}
    typed |= options.typed("out", "resume", "preset", "recipe", "max_seconds")
    how = console.command_line(["train", request.task], typed)
    with console.plain_errors(), using_data_folder(options.data_dir):
        found = training.train(
            task, config, out, options.resume, device, stop_after=options.max_seconds,
            how_to_resume=how,
        )  # fmt: skip
        _conclude(found, out)


def _start(request: Request, options: Options) -> Values:
    """The settings of the preset, or of the run that is resumed; flags change them."""
    from equipool.training import RunFolder

    fresh = options.preset is not None or options.recipe is not None
    if not options.resume or fresh:
        return tasks.base_values(request.task, options.preset, options.recipe)
    if options.out is None:
        raise ValueError("--resume requires --out, the directory of the run")
    folder = RunFolder(options.out)
    config: dict[str, Any] = folder.read_config() if folder.config.exists() else {}
    if config.get("task") == request.task:
        return config["fields"] | config["training"]
    if "steps" not in request.given:
        raise ValueError(f"--resume: {options.out} has no run of {request.task}")
    return tasks.base_values(request.task)


def _conclude(found: Record, out: Path) -> None:
    if not found.complete:
        raise typer.Exit(console.STOPPED)
    _print_record(found)
    console.report_line(f"The run is in {out}")
    if found.failed:
        console.fail(f"the run failed: {found.warning}")


def _print_record(record: Record) -> None:
    """The metrics of the last evaluation and of the best."""
    best = record.best or {"metrics": {}}
    at_best = f"best, step {best['step']:,}" if record.best else "best"
    headings = ("metric", f"last, step {record.steps:,}", at_best)
    found = ((name, value, best["metrics"].get(name)) for name, value in record.metrics.items())
    console.print_table(headings, [(name, _number(last), _number(at)) for name, last, at in found])
    console.report_line(
        f"{record.training_seconds:,.1f} s of training, {record.seconds:,.1f} s in total; "
        f"{record.num_parameters:,} parameters; {record.skipped} skipped steps, "
        f"{record.spikes} spikes"
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def commands(task: str | None) -> typer.Typer:
    return tasks.task_commands(ABOUT, run, Options, task)
