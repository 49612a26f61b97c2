"""What `equipool train` and `equipool sweep` share: a command for each experiment, whose flags are
the fields of its task and of the training settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from equipool.cli import console
from equipool.experiments.presets import EXPERIMENTS, RECIPES
from equipool.settings import NOTHING, Setting, as_text, expected, from_json, settings_of, to_json

if TYPE_CHECKING:
    from equipool.training import Task, TrainingConfig

Options = TypeVar("Options", bound="RunOptions")
Values = dict[str, Any]  # of the fields of the task and of the training settings

# Fields that a run's name always has, if the task has them.
NAMED = ("dataset", "csv", "convolution", "aggregation", "embedding", "seed")


@dataclass(frozen=True)
class RunOptions:
    """Options of commands that train; no task has them."""

    out: Annotated[
        Path | None, console.option("directory of the run or runs (default: runs/TASK)", "PATH")
    ] = None
    preset: Annotated[
        str | None, console.option("start from these settings; other flags override them", "NAME")
    ] = None
    recipe: Annotated[
        str | None,
        console.option("settings of the equilibrium layers; converging trains towards the minimum"),
    ] = None
    device: console.Device = "auto"
    threads: console.Threads = 1
    max_seconds: Annotated[
        float | None, console.option("save and stop after this many seconds", "FLOAT")
    ] = None
    data_dir: console.DataDir = None

    def typed(self, *left_out: str) -> dict[str, object]:
        """The options that differ from their defaults, as they are typed."""
        return {
            f"--{field.name.replace('_', '-')}": getattr(self, field.name)
            for field in fields(self)
            if field.name not in left_out and getattr(self, field.name) != field.default
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
        values = to_json(getattr(kind, chosen.recipe)()) | experiment.training | chosen.training
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
    about: str, options: type[Options], body: Callable[[Request, Options], None], chosen: str | None
) -> typer.Typer:
    """A group with a command for each task, which calls `body` with what was typed. The chosen one
    has its flags; `options` is a dataclass of those that do not depend on the task."""
    app = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    for name, experiment in EXPERIMENTS.items():
        if name == chosen:
            listed = (f"  {key:<6} {one.about}" for key, one in experiment.presets.items())
            text = "\n".join((about, "", "\b", "Presets:", *listed))
            app.command(name, help=text)(_command(name, options, body))
        else:
            app.command(name, help=f"Learn {experiment.about}.")(lambda: None)
    return app


def _command(
    task: str, options: type[Options], body: Callable[[Request, Options], None]
) -> Callable[..., None]:
    """A function with the signature that typer reads: a parameter for each setting and option."""
    settings = settings_of_task(task)
    hints = get_type_hints(options, include_extras=True)
    own = {field.name: (hints[field.name], field.default) for field in fields(options)}
    usual = {name: one.default for name, one in settings.items()} | EXPERIMENTS[task].training
    typed = {name: (_flag(one, usual[name]), None) for name, one in settings.items()}

    def command(**values: Any) -> None:
        given = {name: values[name] for name in settings if values[name] is not None}
        body(Request(task, given), options(**{name: values[name] for name in own}))

    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, keyword, default=default, annotation=hint)
        for name, (hint, default) in (typed | own).items()
    ])  # fmt: skip
    return command


def _flag(setting: Setting, default: Any) -> Any:
    about = re.sub(r"\$[^$]*\$,? ?", "", setting.about).replace("`", "").rstrip(".")
    about = re.sub(r"\bNone\b", NOTHING, about)
    _, one_of, names = expected(setting.hint).partition("one of ")
    about += f"; {one_of}{names}" if names else ""
    about += "" if default is MISSING else f"  [default: {as_text(default)}]"
    return Annotated[str | None, console.option(about, setting.metavar, setting.flag)]
