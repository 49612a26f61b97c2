"""Typed settings: the fields of a dataclass as Python values, as JSON, and as the text of flags.

>>> @dataclass(frozen=True)
... class Example:
...     rate: Annotated[float, Range(above=0)] = 0.1
>>> from_text(Example, {"rate": "1e-3"})
Example(rate=0.001)
>>> from_json(Example, {"rate": -1})
Traceback (most recent call last):
    ...
ValueError: rate is -1, expected a number more than 0
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

NOTHING = "none"  # None as text
UNIONS = (Union, UnionType)
# What values of a type are called in messages, and as the value of a flag.
PLAIN: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "INT"), float: ("a number", "FLOAT"), str: ("text", "TEXT"),
    bool: ("true or false", "true|false"), NoneType: (NOTHING, NOTHING),
    Path: ("a path", "PATH"),
}  # fmt: skip


class MismatchError(ValueError):
    """A value that a setting cannot have; whoever knows its name says what is expected."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number, as in `Annotated[float, Range(least=0, below=1)]`."""

    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    most: float = math.inf

    def check(self, value: float) -> float:
        if not (self.least <= value <= self.most and self.above < value < self.below):
            raise MismatchError
        return value

    def __str__(self) -> str:
        bounds = {"at least": self.least, "more than": self.above, "less than": self.below,
                  "at most": self.most}  # fmt: skip
        return " and ".join(f"{how} {one:g}" for how, one in bounds.items() if math.isfinite(one))


Count = Annotated[int, Range(least=1)]
Share = Annotated[float, Range(least=0, below=1)]


@dataclass(frozen=True)
class OneOf:
    """Names that a text may be, looked up where they are defined, as in
    `Annotated[str, OneOf("equipool.baselines.AGGREGATIONS")]`."""

    where: str

    def check(self, value: str) -> str:
        if value not in resolve_name(self.where):
            raise MismatchError
        return value

    def __str__(self) -> str:
        return f"one of {', '.join(resolve_name(self.where))}"


def as_text(value: Any) -> str:
    """A value as it is typed.

    Example:
        >>> as_text(None), as_text(True), as_text((600, 300)), as_text(0.001)
        ('none', 'true', '600x300', '0.001')
    """
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else str(value).lower()
    if not isinstance(value, tuple | list):
        return str(value)
    return ("," if any(isinstance(one, str) for one in value) else "x").join(map(str, value))


def read(name: str, text: str, hint: Any) -> Any:
    """The value of this type that was typed. `name` is for messages.

    Example:
        >>> read("steps", "1e6", int), read("clip", "none", float | None)
        (1000000, None)
    """
    return check(name, _parse(text.strip(), hint), hint)


def _parse(text: str, hint: Any) -> Any:
    """The Python value of a text; the text itself where it is of another type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        if NoneType in inner and text.lower() == NOTHING:
            return None
        found = (_parse(text, one) for one in inner)
        return next((value for value in found if not isinstance(value, str)), text)
    if origin is Annotated:
        return _parse(text, inner[0])
    if origin is tuple:
        parts = text.split("," if inner[0] is str else "x")
        return tuple(_parse(part.strip(), inner[0]) for part in parts)
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if hint is Path:
        return Path(text)
    if hint in (int, float):
        with suppress(ValueError):
            return hint(text)
        with suppress(ValueError):
            return int(float(text)) if float(text).is_integer() else text  # such as 1e6
    return text


def check(name: str, value: Any, hint: Any) -> Any:
    """The value if it is of this type, with parts completed; else a ValueError that says what is
    expected of `name`."""
    try:
        return _checked(value, hint)
    except MismatchError:
        raise ValueError(f"{name} is {value!r}, expected {expected(hint)}") from None
    except ValueError as error:
        raise ValueError(f"{name} is {value!r}: {error}") from None


def _checked(value: Any, hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        for one in inner:
            try:
                return _checked(value, one)
            except MismatchError:
                continue
    elif origin is Annotated:
        value = _checked(value, inner[0])
        for rule in inner[1:]:
            value = rule.check(value)
        return value
    elif origin is tuple:
        if isinstance(value, tuple | list):
            found = tuple(_checked(one, inner[0]) for one in value)
            if inner[0] is not int and ("" in found or len({*found}) < len(found)):
                raise MismatchError  # names, of which none is empty and none comes twice
            return found
    elif value in inner if origin is Literal else _is_a(value, hint):
        return value
    raise MismatchError


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of a plain type; any value is of another. True is no number, and a number
    is finite."""
    if kind not in (int, float):
        return kind not in PLAIN or isinstance(value, kind)
    numbers = isinstance(value, (int, float) if kind is float else int)
    finite = not isinstance(value, float) or math.isfinite(value)
    return numbers and not isinstance(value, bool) and finite


def expected(hint: Any) -> str:
    """What a value of this type is.

    Example:
        >>> expected(Annotated[float, Range(above=0)] | None)
        'a number more than 0, or none'
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        return ", or ".join(map(expected, inner))
    if origin is Annotated:
        words = [] if inner[0] is str else [expected(inner[0])]
        return " ".join([*words, *map(str, inner[1:])])
    if origin is Literal:
        return f"one of {', '.join(inner)}"
    if origin is tuple:
        if inner[0] is int:
            return f"{PLAIN[int][0]}, or several such as 600x300x32"
        return "different names separated by commas" if inner[0] is str else expected(inner[0])
    return PLAIN[hint][0]


@dataclass(frozen=True)
class Setting:
    """A field of a dataclass of settings."""

    name: str
    hint: Any
    default: Any  # MISSING if it is required
    about: str  # from the docstring

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def read(self, text: str) -> Any:
        return read(self.flag, text, self.hint)

    def read_several(self, text: str) -> list[Any]:
        """Values with commas between them, each once. A comma before `key=` is a part's own, and
        commas of a free text are its own.

        Example:
            >>> from equipool.parts import Part
            >>> hint = Annotated[str, Part("equipool.solvers.Solver")]
            >>> Setting("solver", hint, MISSING, "").read_several("nesterov,newton:damping=0.1")
            ['nesterov', 'newton:damping=0.1']
        """
        free = self.metavar in (PLAIN[str][1], "A,B")
        values = [text] if free else re.split(r",(?!\s*\w+=)", text)
        return list(dict.fromkeys(map(self.read, values)))

    @property
    def metavar(self) -> str:
        """The kind of its value, as in the usage of a flag."""
        return _metavar(self.hint)


def _metavar(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        return "|".join(_metavar(one) for one in inner if one is not NoneType)
    if origin is tuple:
        return "A,B" if inner[0] is str else f"{_metavar(inner[0])}x..."
    if origin is Literal:
        return "|".join(inner)
    if origin is Annotated and inner[0] is not str:
        return _metavar(inner[0])
    return PLAIN[hint][1] if hint in PLAIN else "NAME"


def settings_of(kind: type) -> dict[str, Setting]:
    """The fields of a dataclass by name."""
    hints, about = get_type_hints(kind, include_extras=True), _documented(kind)
    return {f.name: Setting(f.name, hints[f.name], f.default, about.get(f.name, ""))
            for f in fields(kind)}  # fmt: skip


def _documented(kind: type) -> dict[str, str]:
    """The entries of the section `Args:` of a class's docstring, and of those of its bases."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        documented = inspect.cleandoc(one.__doc__ or "")
        section = re.search(r"^Args:\n((?:[ ].*\n?|\n)+)", documented, re.MULTILINE)
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.M)
        found |= {name: " ".join(text.split()) for name, text in entries}
    return found


def check_fields(made: Any) -> None:
    """Check the fields of a dataclass, and complete its parts. For `__post_init__`."""
    for name, one in settings_of(type(made)).items():
        object.__setattr__(made, name, check(name, getattr(made, name), one.hint))


def from_text(kind: type[T], texts: Mapping[str, str | None]) -> T:
    """The dataclass with the values that were typed; None for those that were not."""
    known = settings_of(kind)
    given = {name: known[name].read(text) for name, text in texts.items() if text is not None}
    for name, one in known.items():
        if name not in given and one.default is MISSING:
            raise ValueError(f"{one.flag} is missing, expected {expected(one.hint)}")
    return kind(**given)


def to_json(made: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them."""
    found = {name: getattr(made, name) for name in settings_of(type(made))}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}


def from_json(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass with these values of its fields; a ValueError for any that it cannot have."""
    known = settings_of(kind)
    for name in values:
        if name not in known:
            raise ValueError(f"{kind.__name__} has no setting {name!r}: it has {', '.join(known)}")
    for name, one in known.items():
        if name not in values and one.default is MISSING:
            raise ValueError(f"{name} is missing, expected {expected(one.hint)}")
    return kind(**{name: check(name, value, known[name].hint) for name, value in values.items()})
