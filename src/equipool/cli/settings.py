"""From flags, presets and saved runs to a task and its training settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipool.cli.flags import TASK, TRAINING, Flag, as_typed
from equipool.experiments.presets import EXPERIMENTS, find_preset

if TYPE_CHECKING:
    from equipool.training import Task, TrainingConfig

Values = dict[str, dict[str, Any]]  # by section, then by field

# Fields that a run's name always has, if the task has them.
NAMED = ("dataset", "csv", "convolution", "aggregation", "embedding", "seed")


def base_values(task: str, preset: str | None) -> Values:
    """The task's defaults, or the preset's settings."""
    from equipool.experiments.registry import TASKS
    from equipool.training.config import flatten

    kind: Any = TASKS[task]
    training = dict(EXPERIMENTS[task].training)
    if preset is not None:
        found = find_preset(task, preset)
        kind, training = getattr(kind, found.recipe), training | dict(found.training)
    return {TASK: flatten(asdict(kind())), TRAINING: training}


def saved_values(task: str, run: Path) -> Values:
    """The settings of the run in this directory; the task's defaults if there is no run of it."""
    from equipool.training import RunFolder, TrainingConfig
    from equipool.training.config import upgraded

    folder = RunFolder(run)
    config = folder.read_config() if folder.config.exists() else {}
    if config.get("task") != task:
        return base_values(task, None)
    config = dict(upgraded(config))
    known = [field.name for field in fields(TrainingConfig)]
    training = {name: config[TRAINING][name] for name in known if name in config[TRAINING]}
    return {TASK: dict(config[TASK]), TRAINING: training}


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
    """The task and the training settings."""
    from equipool.training import TrainingConfig

    if "steps" not in values[TRAINING]:
        raise ValueError("--steps is missing: give a number, or choose a --preset")
    return make_task(task, values), TrainingConfig(**values[TRAINING])


def make_task(task: str, values: Values) -> Task:
    """The task alone."""
    from equipool.training.config import task_from_config

    return task_from_config({"task": task, "fields": values[TASK]})


def axes_of(
    task: str, flags: Iterable[Flag], given: Mapping[Flag, str], preset: str | None
) -> dict[Flag, tuple[Any, ...]]:
    """The values of each flag in a sweep, in the order of the flags: those given, else those of the
    preset."""
    own = find_preset(task, preset).axes if preset is not None else {}
    axes = {flag: own[flag.name] for flag in flags if flag.section == TASK and flag.name in own}
    axes |= {flag: flag.read_several(text) for flag, text in given.items()}
    return {flag: axes[flag] for flag in flags if flag in axes}


def run_name(task: str, values: Values, axes: Mapping[Flag, tuple[Any, ...]]) -> str:
    """A run's name: its method, size and seed, and what else a sweep varies."""
    made = make_task(task, values)
    parts = {name: getattr(made, name) for name in NAMED if getattr(made, name, None) is not None}
    for flag, choices in axes.items():
        if len(choices) > 1:
            parts[flag.name] = values[flag.section][flag.name]
    ordered = sorted(parts.items(), key=lambda part: part[0] == "seed")
    return "-".join(_in_name(name, value) for name, value in ordered)


def _in_name(name: str, value: Any) -> str:
    if name == "csv":
        return f"csv-{Path(value).name.split('.')[0]}"
    return str(value) if name == "aggregation" else f"{name.replace('_', '-')}-{as_typed(value)}"
