"""What `equipool train` and `equipool sweep` share: a command for each experiment, whose flags are
the fields of its task and of the training settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipool.cli import console
from equipool.experiments.common import EXPERIMENTS, RECIPES
from equipool.settings import Range, Setting, as_text, from_json, settings_of, to_json

if TYPE_CHECKING:
    from equipool.training import Task, TrainingConfig

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
    recipe: str | None = None
    device: str = "auto"
    threads: console.Threads = 1
    max_seconds: Annotated[float, Range(above=0)] | None = None
    data_dir: Path | None = None

    def typed(self, *left_out: str) -> dict[str, object]:
        """The options that differ from their defaults, as they are typed."""
        return {
            one.flag: getattr(self, name)
            for name, one in settings_of(type(self)).items()
            if name not in left_out and getattr(self, name) != one.default
        }


@dataclass(frozen=True)
class Request:
    """What was typed: the task, and the text of each setting that was given."""

    task: str
    given: dict[str, str]

    @property
    def settings(self) -> dict[str, Setting]:
        return settings_of_task(self.task)

    def words(self) -> list[str]:
        """The flags that were given, as they were typed."""
        pairs = ((self.settings[name].flag, text) for name, text in self.given.items())
        return [self.task, *(word for pair in pairs for word in pair)]


def settings_of_task(task: str) -> dict[str, Setting]:
    """The fields of a task and of the training settings."""
    from equipool.training import TrainingConfig

    return settings_of(EXPERIMENTS[task].task()) | settings_of(TrainingConfig)


def base_values(task: str, preset: str | None = None, recipe: str | None = None) -> Values:
    """The task's defaults, or the preset's settings; changed by the recipe."""
    experiment = EXPERIMENTS[task]
    kind: Any = experiment.task()
    values = to_json(kind()) | dict(experiment.training)
    if preset is not None:
        _check_name("--preset", preset, experiment.presets)
        chosen = experiment.presets[preset]
        values = to_json(getattr(kind, preset)()) | experiment.training | chosen.training
    if recipe is not None:
        _check_name("--recipe", recipe, RECIPES)
        own = experiment.training  # where the task has weights of its own
        known = {"aux_weight", *settings_of(kind)} - set(own)
        values |= {name: value for name, value in RECIPES[recipe].items() if name in known}
    return values


def _check_name(flag: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise ValueError(f"{flag} is {name!r}, expected one of {', '.join(known)}")


def build(task: str, values: Values) -> tuple[Task, TrainingConfig]:
    from equipool.training import TrainingConfig

    kind = EXPERIMENTS[task].task()
    if "steps" not in values:
        raise ValueError("--steps is missing: give a number, or choose a --preset")
    own = settings_of(kind)
    made = from_json(kind, {name: value for name, value in values.items() if name in own})
    training = {name: value for name, value in values.items() if name not in own}
    return made, from_json(TrainingConfig, training)


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


def default_folder(task: str, options: RunOptions) -> Path:
    """Where runs go without `--out`."""
    return Path("runs") / "-".join(filter(None, (task, options.preset, options.recipe)))


def task_commands(
    about: str, body: Callable[..., None], options: type[RunOptions], chosen: str | None
) -> typer.Typer:
    """A group with a command for each task, which calls `body` with the request and the options.
    The chosen one has its flags."""
    app = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    for name, experiment in EXPERIMENTS.items():
        if name == chosen:
            listed = (f"  {key:<6} {one.about}" for key, one in experiment.presets.items())
            text = "\n".join((about, "", "\b", "Presets:", *listed))
            app.command(name, help=text)(_command(name, body, options))
        else:
            app.command(name, short_help=experiment.about)(lambda: None)
    return app


def _command(
    task: str, body: Callable[..., None], options: type[RunOptions]
) -> Callable[..., None]:
    """A function with a flag for each setting of the task, of the training and of the options."""
    settings, own = settings_of_task(task), settings_of(options)
    usual = {"steps": None} | EXPERIMENTS[task].training

    def call(**values: Any) -> None:
        given = {name: values[name] for name in settings if values[name] is not None}
        with console.plain_errors(console.WRONG_USE):
            chosen = console.options_from(options, values)
        body(Request(task, given), chosen)

    flags = {name: console.flag_of(one, usual.get(name, one.default))
             for name, one in settings.items()}  # fmt: skip
    flags |= {name: console.option_of(one) for name, one in own.items()}
    return console.with_signature(call, flags, None)
