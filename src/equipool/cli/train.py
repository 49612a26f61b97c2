"""`equipool train`, and what it shares with `sweep`: a command for each experiment, whose flags are
the fields of its task and of the training settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from equipool import training
from equipool.cli import console
from equipool.experiments.common import EXPERIMENTS, RECIPES, using_data_folder
from equipool.settings import Count, OneOf, Range, Setting, as_text, from_json, settings_of, to_json
from equipool.training import RunFolder, Task, TrainingConfig

Values = dict[str, Any]  # of the fields of the task and of the training settings

# Fields that a run's name always has, if the task has them.
NAMED = ("dataset", "csv", "convolution", "aggregation", "embedding", "seed")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of commands that train; no task has them.

    Args:
        out: directory of the run or runs (default: runs/TASK).
        preset: start from these settings; other flags override them.
        recipe: settings of the equilibrium layers; converging trains towards the minimum.
        device: cpu, cuda, cuda:1, ... or auto.
        threads: CPU threads.
        max_seconds: save and stop after this many seconds.
        data_dir: data directory (default: $EQUIPOOL_DATA, then the cache directory).
    """

    out: Path | None = None
    preset: str | None = None
    recipe: Annotated[str, OneOf("equipool.experiments.common.RECIPES")] | None = None
    device: str = "auto"
    threads: Count = 1
    max_seconds: Annotated[float, Range(above=0)] | None = None
    data_dir: Path | None = None

    def words(self, *names: str) -> list[object]:
        """Some of the options as they are typed, without those that have their defaults."""
        chosen = {one.flag: getattr(self, name) for name, one in settings_of(RunOptions).items()
                  if name in names and getattr(self, name) != one.default}  # fmt: skip
        return [word for pair in chosen.items() for word in pair]

    def folder(self, task: str) -> Path:
        """Where runs go without `--out`."""
        return Path("runs") / "-".join(filter(None, (task, self.preset, self.recipe)))


def settings_of_task(task: str) -> dict[str, Setting]:
    """The fields of a task and of the training settings."""
    return settings_of(EXPERIMENTS[task].task()) | settings_of(TrainingConfig)


def base_values(task: str, preset: str | None = None, recipe: str | None = None) -> Values:
    """The task's defaults, or the preset's settings; changed by the recipe."""
    experiment = EXPERIMENTS[task]
    kind: Any = experiment.task()
    made, chosen = kind(), dict(experiment.training)
    if preset is not None:
        if preset not in experiment.presets:
            names = ", ".join(experiment.presets)
            raise ValueError(f"--preset is {preset!r}, expected one of {names}")
        made, chosen = getattr(kind, preset)(), chosen | experiment.presets[preset].training
    values = to_json(made) | chosen
    if recipe is not None:
        # where the task has weights of its own
        known = {"aux_weight", *settings_of(kind)} - set(experiment.training)
        values |= {name: value for name, value in RECIPES[recipe].items() if name in known}
    return values


def build(task: str, values: Values) -> tuple[Task, TrainingConfig]:
    kind = EXPERIMENTS[task].task()
    own = {name: values[name] for name in settings_of(kind) if name in values}
    others = {name: value for name, value in values.items() if name not in own}
    return from_json(kind, own), from_json(TrainingConfig, others)


def check_kept(given: Mapping[str, Any], task: Task) -> None:
    """Raise if a value that was typed has no effect beside the others."""
    for name, value in given.items():
        if value is not None and getattr(task, name, value) is None:
            raise ValueError(f"--{name} {value} contradicts the other settings: leave one out")


def run_name(task: Task, values: Values, varied: Iterable[str]) -> str:
    """A run's name: its method, size and seed, and what else a sweep varies."""
    parts = {name: getattr(task, name) for name in NAMED if getattr(task, name, None) is not None}
    parts |= {name: values[name] for name in varied}
    words = []
    for name, value in sorted(parts.items(), key=lambda part: part[0] == "seed"):
        words += [] if name == "aggregation" else [name.replace("_", "-")]
        text = Path(value).name.split(".")[0] if name == "csv" else as_text(value)
        words.append(text.replace(":", "-").replace(",", "-").replace("=", "-"))
    return "-".join(words)


def experiment_commands(body: Callable[..., None], chosen: str | None) -> typer.Typer:
    """A group with a command for each experiment, which calls `body`. The chosen one has its
    flags."""
    about = inspect.cleandoc(body.__doc__ or "")
    app = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    for name, experiment in EXPERIMENTS.items():
        if name != chosen:
            app.command(name, short_help=experiment.about)(lambda: None)
            continue
        listed = (f"  {key:<6} {one.about}" for key, one in experiment.presets.items())
        text = "\n".join((about, "", "\b", "Presets:", *listed))
        usual = {"steps": None} | experiment.training
        flags = [console.flag_of(one, usual.get(key, one.default))
                 for key, one in settings_of_task(name).items()]  # fmt: skip
        app.command(name, help=text)(console.command(partial(body, name), flags))
    return app


def train(
    task: str,
    resume: Annotated[bool, typer.Option(
        "--resume", help="resume the run in --out with its saved settings; start it if there is "
        "none. A larger --steps extends a finished run")] = False,
    *, options: RunOptions, **texts: str | None,
) -> None:  # fmt: skip
    """Train a network. Interrupted runs resume with --resume.

    On Ctrl-C, SIGTERM or --max-seconds the run saves and prints the command that resumes it.
    """
    with console.plain_errors(console.WRONG_USE):
        known = settings_of_task(task)
        given = {name: known[name].read(text) for name, text in texts.items() if text is not None}
        values = _start(task, resume, options) | given
        made, config = build(task, values)
        check_kept(given, made)
        device = console.choose_device(options.device, options.threads)
    out = options.out or options.folder(task) / run_name(made, values, ())
    how = console.command_line("train", task, "--out", out, "--resume",
                               *options.words("device", "threads", "data_dir"))  # fmt: skip
    with using_data_folder(options.data_dir):
        record = training.train(
            made, config, out, resume, device, stop_after=options.max_seconds, how_to_resume=how
        )
    if not record.complete:
        raise typer.Exit(console.STOPPED)
    best = record.best or {"step": 0, "metrics": {}}
    headings = ("metric", f"last, step {record.steps:,}", f"best, step {best['step']:,}")
    rows = [(name, console.number(value), console.number(best["metrics"].get(name)))
            for name, value in record.metrics.items()]  # fmt: skip
    console.print_table(headings, rows)
    console.report_line(f"{record.training_seconds:,.1f} s of training. The run is in {out}")
    if record.failed:
        console.fail("the run failed: no evaluation gave a finite number")


def _start(task: str, resume: bool, options: RunOptions) -> Values:
    """The settings of the run that is resumed, or of the preset; flags change them."""
    if resume and options.out is None:
        raise ValueError("--resume requires --out, the directory of the run")
    if resume and options.preset is None and options.recipe is None:
        folder = RunFolder(options.out or "")
        config: dict[str, Any] = folder.read_config() if folder.config.exists() else {}
        if config.get("task") == task:
            return config["fields"] | config["training"]
    return base_values(task, options.preset, options.recipe)
