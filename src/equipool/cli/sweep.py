"""`equipool sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import typer

from equipool import training
from equipool.cli import console, train
from equipool.cli.report import print_results
from equipool.experiments.common import EXPERIMENTS, using_data_folder
from equipool.extras import check_extras
from equipool.files import StorageError
from equipool.training import RunFolder, Stop, Task, TrainingConfig
from equipool.training.config import chosen_config, differences

RESUME = "repeat this command"
Plan = dict[Path, tuple[Task, TrainingConfig]]  # the runs by their directories


def sweep(task: str, *, options: train.RunOptions, **texts: str | None) -> None:
    """Train a network for each combination of settings.

    Separate several values of a flag with commas, as in --seed 0,1,2. Finished runs are skipped;
    interrupted ones resume.
    """
    given = {name: text for name, text in texts.items() if text is not None}
    out = options.out or options.folder(task)
    with console.plain_errors(console.WRONG_USE):
        check_extras("a sweep", {"train": ("filelock", "safetensors"), "report": ("pandas",)})
        device = console.choose_device(options.device, options.threads)
        planned = plan_runs(task, given, options, out)
    waiting = [run for run in planned if not RunFolder(run).record.exists()]
    finished = len(planned) - len(waiting)
    console.report_line(
        f"{len(planned)} runs in {out}: {finished} finished, {len(waiting)} to train"
    )
    stop = Stop(options.max_seconds, console.report_line)
    with using_data_folder(options.data_dir), stop.on_signals():
        failed = _train({run: planned[run] for run in waiting}, device, stop)
    done = [run for run in planned if RunFolder(run).record.exists()]
    if done:
        print_results(done)
        console.report_line(f"For the curves: {console.command_line('report', out)}")
    if failed:
        console.fail(f"{failed} runs failed, for the reasons above")
    if len(done) < len(planned):
        console.report_line(f"{len(done)} of {len(planned)} runs are finished. To resume, {RESUME}")
        raise typer.Exit(console.STOPPED)


def plan_runs(task: str, given: Mapping[str, str], options: train.RunOptions, out: Path) -> Plan:
    """A run for each combination of the values that are given, else of the preset's. A run of the
    same settings that is in `out` already is used, whatever its name."""
    values = train.base_values(task, options.preset, options.recipe)
    known = train.settings_of_task(task)
    usual = dict(EXPERIMENTS[task].presets[options.preset].axes) if options.preset else {}
    chosen = usual | {name: known[name].read_several(text) for name, text in given.items()}
    axes = {name: chosen[name] for name in known if name in chosen}
    varied = [name for name, choices in axes.items() if len(choices) > 1]
    folders = [file.parent for file in sorted(out.glob("*/config.json"))]
    existing = {folder: RunFolder(folder).read_config() for folder in folders}
    planned: Plan = {}
    for combination in product(*axes.values()):
        own = dict(zip(axes, combination, strict=True))
        made, config = train.build(task, values | own)
        train.check_kept(own, made)
        folder = out / train.run_name(made, values | own, varied)
        run = _place(chosen_config(made, config), folder, existing)
        if run in planned:
            raise ValueError(f"two runs would be {run}: sweep them with an --out for each")
        planned[run] = made, config
    return planned


def _place(config: dict[str, Any], folder: Path, existing: Mapping[Path, dict[str, Any]]) -> Path:
    """The directory of a run with these settings, or this one, which must be free."""
    # without data, which is read when a run starts
    different = {run: differences(saved | {"data": {}}, config) for run, saved in existing.items()}
    if same := [run for run, lines in different.items() if not lines]:
        return same[0]
    if folder in existing:
        lines = "\n  ".join(["drop these flags or choose another --out", *different[folder]])
        raise ValueError(f"{folder} was started with other settings: {lines}")
    return folder


def _train(waiting: Plan, device: str | None, stop: Stop) -> int:
    """Train until everything is finished or it is time to stop; how many runs failed."""
    failed = 0
    for number, (run, plan) in enumerate(waiting.items(), 1):
        # at the end of a run all processes have agreed whether to stop
        if stop.reason is not None or (number == 1 and stop.due()):
            break
        console.report_line(f"[{number}/{len(waiting)}] {run.name}")
        try:
            training.train(*plan, run, True, device, stop_after=stop, how_to_resume=RESUME)
        except StorageError:
            raise  # the next run would fail as well
        except Exception as error:  # one run's failure must not stop the others
            failed += 1
            console.report_line(f"{run.name} failed, {type(error).__name__}: {error}")
    return failed
