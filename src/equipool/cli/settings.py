"""From flags, presets and what a run was started with to a task and its training settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from equipool.cli.flags import TASK, TRAINING, Flag
from equipool.cli.presets import find_preset
from equipool.cli.values import written
from equipool.training import Task, TrainingConfig
from equipool.training.folder import RunFolder

Values = dict[str, dict[str, Any]]  # of the fields, by the part they are in

# The fields that a run's name always tells, where the task has them.
TOLD = ("dataset", "csv", "convolution", "aggregation", "embedding", "seed")


def base_values(kind: type[Task], preset: str | None) -> Values:
    """What the preset sets."""
    if preset is None:
        return {TASK: {}, TRAINING: {}}
    found = find_preset(kind.name, preset)
    return {TASK: dict(found.fields), TRAINING: dict(found.training)}


def saved_values(kind: type[Task], run: Path) -> Values:
    """What the run in this directory was started with; nothing where there is none, or one of
    another task."""
    folder = RunFolder(run)
    config = folder.read_config() if folder.config.exists() else {}
    if config.get("task") != kind.name:
        return base_values(kind, None)
    # a field that is no more is left to the engine, which says that the configs differ
    return {
        part: {name: config[part][name] for name in _field_names(owner) if name in config[part]}
        for part, owner in ((TASK, kind), (TRAINING, TrainingConfig))
    }


def _field_names(owner: type) -> list[str]:
    return [field.name for field in fields(owner)]


def with_values(values: Values, given: Mapping[Flag, Any]) -> Values:
    """The same with other values of these flags."""
    changed = {part: dict(content) for part, content in values.items()}
    for flag, value in given.items():
        changed[flag.part][flag.name] = value
    return changed


def build(kind: type[Task], values: Values) -> tuple[Task, TrainingConfig]:
    """The task and the training settings."""
    if "steps" not in values[TRAINING]:
        raise ValueError("--steps is missing: say how many, or choose a --preset")
    training = {**kind.training_defaults, **values[TRAINING]}
    return kind(**_tupled(values[TASK])), TrainingConfig(**_tupled(training))


def _tupled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def axes_of(
    kind: type[Task], flags: list[Flag], given: Mapping[Flag, str], preset: str | None
) -> dict[Flag, tuple[Any, ...]]:
    """The values that each flag takes in a sweep, in the order of the flags: those given, else
    those of the preset."""
    own = find_preset(kind.name, preset).axes if preset is not None else {}
    axes = {flag: own[flag.name] for flag in flags if flag.part == TASK and flag.name in own}
    axes |= {flag: flag.read_several(text) for flag, text in given.items()}
    return {flag: axes[flag] for flag in flags if flag in axes}


def combinations(values: Values, axes: Mapping[Flag, tuple[Any, ...]]) -> list[Values]:
    """Every combination of the axes' values; the last axis changes first."""
    return [
        with_values(values, dict(zip(axes, chosen, strict=True)))
        for chosen in product(*axes.values())
    ]


def run_name(kind: type[Task], values: Values, told: Mapping[Flag, tuple[Any, ...]]) -> str:
    """A run's name: its aggregation, size and seed, and what else a sweep goes through."""
    task = kind(**_tupled(values[TASK]))
    parts = {name: getattr(task, name) for name in TOLD if getattr(task, name, None) is not None}
    for flag, choices in told.items():
        if len(choices) > 1:
            parts[flag.parameter] = values[flag.part][flag.name]
    ordered = sorted(parts.items(), key=lambda part: part[0] == "seed")
    return "-".join(_told(name, value) for name, value in ordered)


def _told(name: str, value: Any) -> str:
    if name == "csv":
        return f"csv-{Path(value).name.split('.')[0]}"
    return str(value) if name == "aggregation" else f"{name.replace('_', '-')}-{written(value)}"
