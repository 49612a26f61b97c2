"""`equipool sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from equipool.cli import console, tasks
from equipool.cli.tasks import Request, RunOptions
from equipool.experiments.common import EXPERIMENTS

if TYPE_CHECKING:
    from equipool.training import Stop, Task, TrainingConfig

ABOUT = """Train a network for each combination of settings.

Separate several values of a flag with commas, as in --seed 0,1,2. Finished runs are skipped;
interrupted ones resume."""


class Plan(NamedTuple):
    """A run of the sweep."""

    task: Task
    config: TrainingConfig
    out: Path

    def has(self, file: str) -> bool:
        return (self.out / file).exists()


def run(request: Request, options: RunOptions) -> None:
    """Train what is not finished, and print the results of all."""
    with console.plain_errors(console.WRONG_USE):
        from equipool.experiments.common import using_data_folder
        from equipool.training import Stop
        from equipool.training.devices import check_extras

        check_extras()
        device = console.choose_device(options.device, options.threads)
        out = options.out or tasks.default_folder(request.task, options)
        planned = plan_runs(request, options, out)
        stop = Stop(options.max_seconds, console.report_line)
    how = console.command_line(["sweep", *request.words()], options.typed() | {"--out": out})
    waiting = [plan for plan in planned if not plan.has("record.json")]
    started = sum(plan.has("config.json") for plan in waiting)
    with console.plain_errors(), using_data_folder(options.data_dir):
        console.report_line(
            f"{len(planned)} runs in {out}: {len(planned) - len(waiting)} finished, "
            f"{started} to resume, {len(waiting) - started} to start"
        )
        try:
            with stop.on_signals():
                failed = _train(waiting, device, stop, how)
        except KeyboardInterrupt:
            failed = 0
        finished = [plan.out for plan in planned if plan.has("record.json")]
        _show_results(finished, out)
        if failed:
            console.fail(f"{failed} runs failed, for the reasons above")
        if len(finished) < len(planned):
            done = f"{len(finished)} of {len(planned)} runs are finished"
            console.report_line(f"{done}. To resume: {how}")
            raise typer.Exit(console.STOPPED)


def axes_of(request: Request, preset: str | None) -> dict[str, Sequence[Any]]:
    """The values of each setting that is given, else those of the preset."""
    known = EXPERIMENTS[request.task].presets
    axes: dict[str, Sequence[Any]] = dict(known[preset].axes) if preset is not None else {}
    for name, text in request.given.items():
        axes[name] = request.settings[name].read_several(text)
    return {name: axes[name] for name in request.settings if name in axes}


def plan_runs(request: Request, options: RunOptions, out: Path) -> list[Plan]:
    """A run for each combination of the values. A run of the same settings that is in `out` already
    is used, whatever its name."""
    from equipool.training import RunFolder

    values = tasks.base_values(request.task, options.preset, options.recipe)
    axes = axes_of(request, options.preset)
    varied = [name for name, choices in axes.items() if len(choices) > 1]
    folders = [file.parent for file in sorted(out.glob("*/config.json"))]
    existing = {folder: RunFolder(folder).read_config() for folder in folders}
    planned = []
    for combination in product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        task, config = tasks.build(request.task, values | chosen)
        tasks.check_kept(chosen, task)
        name = tasks.run_name(task, values | chosen, varied)
        planned.append(Plan(task, config, _place(task, config, out / name, existing)))
    if len({plan.out for plan in planned}) < len(planned):
        raise ValueError("two of the runs would have one name: sweep them with an --out for each")
    return planned


def _place(
    task: Task, config: TrainingConfig, folder: Path, existing: Mapping[Path, dict[str, Any]]
) -> Path:
    """The directory of a run with these settings, or this one, which must be free."""
    from equipool.training import ConfigMismatchError
    from equipool.training.config import chosen_config, differences

    wanted = chosen_config(task, config)  # without data, which is read when a run starts
    different = {path: differences(saved | {"data": {}}, wanted)
                 for path, saved in existing.items()}  # fmt: skip
    if same := [path for path, lines in different.items() if not lines]:
        return same[0]
    if folder in existing:
        advice = "drop these flags or choose another --out"
        lines = "".join(f"\n  {line}" for line in different[folder])
        raise ConfigMismatchError(f"{folder} was started with other settings: {advice}{lines}")
    return folder


def _train(waiting: Sequence[Plan], device: str | None, stop: Stop, how: str) -> int:
    """Train until everything is finished or it is time to stop; how many runs failed."""
    from equipool import training
    from equipool.files import StorageError

    failed = 0
    for number, plan in enumerate(waiting, 1):
        # at the end of a run all processes have agreed whether to stop
        if stop.reason is not None or (number == 1 and stop.due()):
            console.report_line(f"Stopping before the next run: {stop.reason}")
            break
        console.report_line(f"[{number}/{len(waiting)}] {plan.out.name}")
        try:
            record = training.train(*plan, True, device, stop_after=stop, how_to_resume=how)
        except StorageError:
            raise  # the next run would fail as well
        except Exception as error:  # one run's failure must not stop the others
            failed += 1
            console.report_line(f"{plan.out.name} failed, {type(error).__name__}: {error}")
            continue
        if not record.complete:
            break
    return failed


def _show_results(finished: Sequence[Path], out: Path) -> None:
    from equipool.extras import advice

    if not finished:
        return
    if missing := advice("The table of results", {"report": ("pandas",)}):
        console.report_line(missing)
        return
    from equipool.report import conclusion, read_runs, results

    runs = read_runs(finished)
    table = results(runs)
    console.print_table(list(table), table.to_numpy().tolist())
    console.report_line(conclusion(runs))
    console.report_line(f"For the curves: {console.command_line(['report', str(out)], {})}")


def commands(task: str | None) -> typer.Typer:
    return tasks.task_commands(ABOUT, run, RunOptions, task)
