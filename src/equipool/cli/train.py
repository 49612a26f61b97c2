"""`equipool train`, and what it shares with `equipool sweep`: a command for each task, and the task
and training settings that flags, presets and saved runs give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.main import get_command

from equipool.cli import console
from equipool.cli.flags import TASK, TRAINING, Flag, as_typed, check_apart, flags_of
from equipool.cli.threads import read_threads, training_step, using_threads
from equipool.experiments.presets import EXPERIMENTS, RECIPES

if TYPE_CHECKING:
    from equipool.training import Record, Task, TrainingConfig

ABOUT = """Train a network. Interrupted runs resume with --resume.

On Ctrl-C, SIGTERM or --max-seconds the run saves and prints the command that resumes it."""
RESUME = (
    "resume the run in --out with its saved settings; start it if there is none. "
    "A larger --steps extends a finished run"
)

Options = TypeVar("Options")
Values = dict[str, dict[str, Any]]  # by section, then by field

# Fields that a run's name always has, if the task has them.
NAMED = ("dataset", "csv", "convolution", "aggregation", "embedding", "seed")


def base_values(task: str, preset: str | None, recipe: str | None = None) -> Values:
    """The task's defaults, or the preset's settings; changed by the recipe."""
    from equipool.experiments.registry import TASKS
    from equipool.training.config import flatten

    kind: Any = TASKS[task]
    training: Any = dict(EXPERIMENTS[task].training)
    if preset is not None:
        known = EXPERIMENTS[task].presets
        if preset not in known:
            raise ValueError(f"--preset is {preset!r}, expected one of {', '.join(known)}")
        kind, training = getattr(kind, known[preset].recipe), training | known[preset].training
    task_fields = flatten(asdict(kind()))
    if recipe is None:
        return {TASK: task_fields, TRAINING: training}
    if recipe not in RECIPES:
        raise ValueError(f"--recipe is {recipe!r}, expected one of {', '.join(RECIPES)}")
    chosen = {k: v for k, v in RECIPES[recipe].items() if k in task_fields}
    kept = {k: v for k, v in task_fields.items() if k.partition(".")[0] not in chosen}
    if "aux_weight" not in EXPERIMENTS[task].training:
        training["aux_weight"] = RECIPES[recipe]["aux_weight"]
    return {TASK: kept | flatten(chosen), TRAINING: training}


def saved_values(task: str, run: Path) -> Values:
    """The settings of the run in this directory; the task's defaults if there is no run of it."""
    from equipool.training import RunFolder
    from equipool.training.config import training_from_config, upgraded

    folder = RunFolder(run)
    config = folder.read_config() if folder.config.exists() else {}
    if config.get("task") != task:
        return base_values(task, None)
    training = asdict(training_from_config(config))
    return {TASK: dict(upgraded(config)[TASK]), TRAINING: training}


def with_values(values: Values, given: Mapping[Flag, Any]) -> Values:
    """The same settings with other values of these flags. Another part takes its own defaults."""
    changed = {section: dict(content) for section, content in values.items()}
    for flag, value in sorted(given.items(), key=lambda one: one[0].name.count(".")):
        content = changed[flag.section]
        if content.get(flag.name, value) != value:
            for name in [name for name in content if name.startswith(f"{flag.name}.")]:
                del content[name]
        content[flag.name] = value
    return changed


def build(task: str, values: Values) -> tuple[Task, TrainingConfig]:
    from equipool.training import TrainingConfig
    from equipool.training.config import task_from_config

    if "steps" not in values[TRAINING]:
        raise ValueError("--steps is missing: give a number, or choose a --preset")
    made = task_from_config({"task": task, "fields": values[TASK]})
    return made, TrainingConfig(**values[TRAINING])


def run_name(task: Task, values: Values, axes: Mapping[Flag, tuple[Any, ...]]) -> str:
    """A run's name: its method, size and seed, and what else a sweep varies."""
    parts = {name: getattr(task, name) for name in NAMED if getattr(task, name, None) is not None}
    for flag, choices in axes.items():
        if len(choices) > 1:
            parts[flag.name] = values[flag.section][flag.name]
    words = []
    for name, value in sorted(parts.items(), key=lambda part: part[0] == "seed"):
        words += [] if name == "aggregation" else [name.replace("_", "-")]
        words.append(Path(value).name.split(".")[0] if name == "csv" else as_typed(value))
    return "-".join(words)


@dataclass(frozen=True)
class Request:
    """What was typed: the task, its flags, and which of them were given."""

    task: str
    flags: tuple[Flag, ...]
    given: dict[Flag, str]

    def words(self) -> list[str]:
        """The flags that were given, as they were typed."""
        return [word for flag, text in self.given.items() for word in (flag.option, text)]


def task_commands(
    about: str, options: type[Options], body: Callable[[Request, Options], None],
    tasks: Iterable[str] = tuple(EXPERIMENTS),
) -> typer.Typer:  # fmt: skip
    """A group with a command for each task, which calls `body` with what was typed. `about` is the
    help; `options` is a dataclass of the options that do not depend on the task."""
    entries = {
        task: (EXPERIMENTS[task].about, partial(_build, task, about, options, body))
        for task in tasks
    }
    return console.make_group(about, entries, "task")


def _build(
    task: str, about: str, options: type[Options], body: Callable[[Request, Options], None]
) -> Any:
    flags = flags_of(task)
    hints = get_type_hints(options, include_extras=True)
    own = {field.name: field.default for field in fields(options)}  # type: ignore[arg-type]

    # typer reads the signature, and calls with every parameter by its name
    def command(**values: Any) -> None:
        typed = {flag: values[flag.parameter] for flag in flags}
        given = {flag: text for flag, text in typed.items() if text is not None}
        with console.plain_errors(console.WRONG_USE):
            check_apart(given, saved={})
        body(Request(task, flags, given), options(**{name: values[name] for name in own}))

    types = {flag.parameter: _option(flag) for flag in flags} | {name: hints[name] for name in own}
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=own.get(name), annotation=one
        )
        for name, one in types.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = types
    presets = EXPERIMENTS[task].presets.items()
    listed = "\n".join(f"  {name:<6} {preset.about}" for name, preset in presets)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(task, cls=console.Command, help=f"{about}\n\n\b\nPresets:\n{listed}")(command)
    return get_command(app)


def _option(flag: Flag) -> Any:
    default = "" if flag.default is None else f"  [default: {flag.default}]"
    option = typer.Option(
        flag.option, help=flag.about + default, metavar=flag.reader.metavar, show_default=False,
        hidden=flag.hidden, rich_help_panel=flag.group,
    )  # fmt: skip
    return Annotated[str | None, option]


@dataclass(frozen=True)
class TrainOptions(console.RunOptions):
    resume: Annotated[bool, console.option(RESUME, "", "--resume")] = False
    record: Annotated[
        Path | None, console.option("also write the summary to this JSON file", "PATH")
    ] = None


def run(request: Request, options: TrainOptions) -> None:
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
            folder = console.default_folder(request.task, options)
            out = folder / run_name(task, values, {})
    unneeded = ("out", "preset", "recipe", "max_seconds")
    given = {"--out": out, "--resume": True} | options.words(*unneeded)
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
    values = base_values(request.task, options.preset, options.recipe)
    fresh = options.preset is not None or options.recipe is not None
    if options.resume and not fresh and options.out is not None:
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
    from equipool.environment import leads

    if not found.complete:
        raise typer.Exit(console.STOPPED)
    console.print_record(found)
    written = ""
    if options.record is not None:
        written = f", its summary in {options.record}"
        if leads():
            found.write(options.record)
    console.report_line(f"The run is in {out}{written}")
    if found.failed:
        console.fail(f"the run failed: {found.warning}")
    if found.config["training"]["schedule"] == "constant":
        longer = {"--out": out, "--resume": True, "--steps": 2 * found.steps}
        how = console.command_line(["train", found.task], longer)
        console.report_line(f"To train longer: {how}")


app = task_commands(ABOUT, TrainOptions, run)
