"""A flag for every field of a task and of the training settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from equipool.baselines import AGGREGATIONS
from equipool.cli.documentation import documented_arguments
from equipool.cli.values import NOTHING, Reader, reader_of, written
from equipool.training import Task, TrainingConfig
from equipool.training.config import PRECISIONS, SHAPES

# Where a value goes, as in a run's config.json.
TASK, TRAINING = "fields", "training"

# Fields whose values have commas of their own: a sweep takes them as they are.
WITH_COMMAS = ("labels",)

# Flags that name the same thing in different ways: one of them at a time.
APART = (("csv", "dataset"),)

# The names that some fields may have, for the help.
NAMES: dict[str, Iterable[str]] = {
    "aggregation": AGGREGATIONS,
    "schedule": SHAPES,
    "precision": PRECISIONS,
}


@dataclass(frozen=True)
class Flag:
    """A flag of the command line, and the field that its value is for."""

    part: str
    name: str
    parameter: str  # the flag's name in Python
    reader: Reader
    default: str | None
    about: str

    @property
    def option(self) -> str:
        return "--" + self.parameter.replace("_", "-")

    def read(self, text: str) -> Any:
        """The value that is meant."""
        try:
            return self.reader.read(text.strip())
        except (ValueError, KeyError, OverflowError):
            raise ValueError(
                f"{self.option} is {text!r}, expected {self.reader.expected}"
            ) from None

    def read_several(self, text: str) -> tuple[Any, ...]:
        """The values that are meant, each once, where commas stand between them."""
        parts = [text] if self.name in WITH_COMMAS else text.split(",")
        return tuple(dict.fromkeys(self.read(part) for part in parts))


def flags_of(kind: type[Task]) -> list[Flag]:
    """The flags of a task: its fields, then those of the training settings. Where both have a field
    of the same name, the flag of the training settings starts with `--training`.

    Example:
        >>> from equipool.experiments.registry import MedianTask
        >>> [flag.option for flag in flags_of(MedianTask)][:3]
        ['--aggregation', '--embedding', '--batch-size']
    """
    own = _flags(kind, TASK, taken=(), defaults={})
    taken = {flag.name for flag in own}
    return own + _flags(TrainingConfig, TRAINING, taken, kind.training_defaults)


def _flags(kind: type, part: str, taken: Iterable[str], defaults: Mapping[str, Any]) -> list[Flag]:
    about, types = documented_arguments(kind), get_type_hints(kind)
    own_first = sorted(fields(kind), key=lambda field: bool(field.kw_only))
    found = []
    for field in own_first:
        default = defaults.get(field.name, field.default)
        found.append(
            Flag(
                part,
                field.name,
                f"training_{field.name}" if field.name in taken else field.name,
                reader_of(types[field.name]),
                None if default is MISSING else written(default),
                _on_the_command_line(field.name, about.get(field.name, "")),
            )
        )
    return found


def _on_the_command_line(name: str, about: str) -> str:
    """What the docstring says, in words of the command line, with the names that the field may
    have."""
    about = re.sub(r"\bNone\b", NOTHING, about)
    if name not in NAMES:
        return about
    names = f"one of {', '.join(NAMES[name])}"
    told = re.sub(r"a name in `[\w.]+`", names, about)
    return told if names in told else f"{about} Here, {names}."


def given_flags(flags: Iterable[Flag], texts: Mapping[str, str | None]) -> dict[Flag, str]:
    """The flags that were given a value, by their names in Python."""
    found = {}
    for flag in flags:
        text = texts[flag.parameter]
        if text is not None:
            found[flag] = text
    return found


def check_apart(given: Mapping[Flag, str], saved: Mapping[str, Any]) -> None:
    """Raise where two of the flags name the same thing in different ways, or one of them what a run
    has by the other.

    Args:
        given: what was typed.
        saved: values of the task's fields in a run that is gone on with.
    """
    typed = {flag.name for flag, text in given.items() if text.lower() != NOTHING}
    for one, other in APART:
        if {one, other} <= typed:
            raise ValueError(f"--{one} and --{other} are both given, expected one of them")
        for name, before in ((one, other), (other, one)):
            if name in typed and saved.get(before) is not None:
                raise ValueError(f"--{name} is given, but the run is of --{before} {saved[before]}")
