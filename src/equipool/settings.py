"""Typed settings: the fields of a dataclass as Python values, as JSON, and as the text of flags.
A part of the layer (solver, steps, start, ...) is one string. Nothing here imports torch before a
part is read.

>>> @dataclass(frozen=True)
... class Example:
...     rate: Annotated[float, Range(above=0)] = 0.1
>>> settings_of(Example)["rate"].read("1e-3")
0.001
>>> from_json(Example, {"rate": -1})
Traceback (most recent call last):
    ...
ValueError: rate is -1, expected a number more than 0
>>> Part("equipool.solvers.Solver").build("newton:damping=1e-2").damping
0.01
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

NOTHING = "none"  # None as text
UNIONS = (Union, UnionType)
SUPPLIED = ("in_channels", "out_channels")  # arguments of parts that the layer supplies
# What values of a type are called in messages.
PLAIN: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path",
    NoneType: NOTHING,
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
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool) and abs(value) < math.inf
    return kind not in PLAIN or isinstance(value, kind)


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
            return f"{PLAIN[int]}, or several such as 600x300x32"
        return "different names separated by commas" if inner[0] is str else expected(inner[0])
    return PLAIN[hint]


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
            >>> hint = Annotated[str, Part("equipool.solvers.Solver")]
            >>> Setting("solver", hint, MISSING, "").read_several("nesterov,newton:damping=0.1")
            ['nesterov', 'newton:damping=0.1']
        """
        free = _first(self.hint) is str and "one of" not in expected(self.hint)
        values = [text] if free else re.split(r",(?!\s*\w+=)", text)
        return list(dict.fromkeys(map(self.read, values)))

    @property
    def metavar(self) -> str:
        """The kind of its value, as in the usage of a flag."""
        return {int: "INT", float: "FLOAT", Path: "PATH"}.get(_first(self.hint), "TEXT")


def _first(hint: Any) -> Any:
    """The first plain type in a type."""
    inner = () if get_origin(hint) is Literal else get_args(hint)
    return _first(inner[0]) if inner else hint


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


@dataclass(frozen=True)
class Part:
    """A text that names a part and its arguments, as in
    `Annotated[str, Part("equipool.solvers.Solver")]`: one of the subclasses that the package of
    this class exports."""

    base: str

    def __str__(self) -> str:
        return f"one of {', '.join(self.classes())}"

    def classes(self) -> Mapping[str, type]:
        """The parts by name.

        Example:
            >>> list(Part("equipool.differentiation.Differentiation").classes())[-1]
            'unrolled'
        """
        return _subclasses(resolve_name(self.base), ".".join(self.base.split(".")[:2]))

    def check(self, text: str) -> str:
        """Check a part, and write it so that equal parts are equal texts: the name of its class
        and the arguments that differ from their defaults.

        Example:
            >>> Part("equipool.solvers.Solver").check("newton:damping=1e-2")
            'newton:damping=0.01'
        """
        name, arguments = self._parse(text)
        self.build(text, **dict.fromkeys(SUPPLIED, 1))  # refuses what no layer could have
        parameters = inspect.signature(self.classes()[name]).parameters
        texts = {key: as_text(arguments[key]) for key, one in parameters.items()
                 if key in arguments and arguments[key] != one.default}  # fmt: skip
        pairs = [f"{key}=({one})" if ":" in one else f"{key}={one}" for key, one in texts.items()]
        return f"{name}:{','.join(pairs)}" if pairs else name

    def build(self, text: str, **supplied: Any) -> Any:
        """The part itself, with these values of the arguments that the layer supplies."""
        name, arguments = self._parse(text)
        kind = self.classes()[name]
        for key, hint in _arguments(kind).items():
            if (inner := _part_in(hint)) and arguments.get(key) is not None:
                arguments[key] = inner.build(arguments[key])
        taken = inspect.signature(kind).parameters
        try:
            return kind(**{k: v for k, v in (supplied | arguments).items() if k in taken})
        except TypeError as error:  # an argument that has no default, for instance
            raise ValueError(f"{name}: {error}") from error

    def _parse(self, text: str) -> tuple[str, dict[str, Any]]:
        """The name, and the arguments as Python values."""
        name, _, listed = text.partition(":")
        if name not in self.classes():
            raise MismatchError
        hints, arguments = _arguments(self.classes()[name]), {}
        for piece in re.split(r",(?![^()]*\))", listed) if listed else ():
            key, _, value = (one.strip() for one in piece.partition("="))
            if key not in hints:
                known = f"it has {', '.join(hints)}" if hints else "it has none"
                raise ValueError(f"{name} has no argument {key!r}: {known}")
            if key in arguments:
                raise ValueError(f"{name} is given {key} twice")
            arguments[key] = read(key, re.sub(r"^\((.*)\)$", r"\1", value), hints[key])
        return name, arguments


@cache
def _subclasses(base: type, package: str) -> dict[str, type]:
    """Those that the package exports (`equipool.solvers` for `equipool.solvers.base.Solver`), by
    name: without the name of the base, in lower case, with hyphens."""
    found = {}
    for name, one in sorted(vars(import_module(package)).items()):
        concrete = isinstance(one, type) and issubclass(one, base) and not inspect.isabstract(one)
        if concrete and one is not base:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.removesuffix(base.__name__))
            found[words.lower()] = one
    return found


@cache
def _arguments(kind: type) -> dict[str, Any]:
    """The types of the arguments of a part's constructor, without those that the layer supplies.
    One that takes another part, such as `Solver | None`, takes its text."""
    hints = get_type_hints(kind.__init__)  # type: ignore[misc]
    names = [name for name in inspect.signature(kind).parameters if name not in SUPPLIED]

    def as_setting(hint: Any) -> Any:
        if get_origin(hint) in UNIONS:
            return Union[tuple(map(as_setting, get_args(hint)))]  # noqa: UP007
        one = get_origin(hint) or hint
        if getattr(one, "__module__", "").startswith("equipool."):
            return Annotated[str, Part(f"{one.__module__}.{one.__qualname__}")]
        return hint

    return {name: as_setting(hints[name]) for name in names if name in hints}


def _part_in(hint: Any) -> Part | None:
    alternatives = get_args(hint) if get_origin(hint) in UNIONS else (hint,)
    rules = (rule for one in alternatives for rule in getattr(one, "__metadata__", ()))
    return next((rule for rule in rules if isinstance(rule, Part)), None)
