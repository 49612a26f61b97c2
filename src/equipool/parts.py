"""A part of the layer (solver, steps, start, ...) as one string: the name of its class, and the
arguments that differ from their defaults. Which parts there are, and what they take, is read from
the classes and the signatures of their constructors.

>>> solver = Part("equipool.solvers.Solver")
>>> solver.complete("newton:damping=1e-2")
'newton:damping=0.01'
>>> solver.build("newton:damping=0.01").damping
0.01

Nothing here imports torch before a part is read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from equipool.settings import UNIONS, MismatchError, as_text, read

SUPPLIED = ("in_channels", "out_channels")  # arguments that the layer supplies


@dataclass(frozen=True)
class Part:
    """A text that names a part and its arguments, as in
    `Annotated[str, Part("equipool.solvers.Solver")]`: one of the subclasses that the package of
    this class exports."""

    base: str

    def check(self, value: str) -> str:
        return self.complete(value)

    def __str__(self) -> str:
        return f"one of {', '.join(self.classes())}"

    def classes(self) -> Mapping[str, type]:
        """The parts by name.

        Example:
            >>> list(Part("equipool.differentiation.Differentiation").classes())[-1]
            'unrolled'
        """
        return _subclasses(resolve_name(self.base))

    def complete(self, text: str) -> str:
        """Check a part, and write it so that equal parts are equal texts."""
        name, arguments = self._parse(text)
        self.build(text, **dict.fromkeys(SUPPLIED, 1))  # refuses what no layer could have
        parameters = inspect.signature(self.classes()[name]).parameters
        given = {key: arguments[key] for key in parameters if key in arguments}
        return write_part(name, {k: v for k, v in given.items() if v != parameters[k].default})

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


def write_part(name: str, arguments: Mapping[str, Any]) -> str:
    """The text of a part.

    Example:
        >>> write_part("newton", {"damping": 0.01, "after": "nesterov:momentum=0.5"})
        'newton:damping=0.01,after=(nesterov:momentum=0.5)'
    """
    texts = {key: as_text(value) for key, value in arguments.items()}
    pairs = [f"{key}=({text})" if ":" in text else f"{key}={text}" for key, text in texts.items()]
    return f"{name}:{','.join(pairs)}" if pairs else name


@cache
def _subclasses(base: type) -> dict[str, type]:
    """Those that the package exports (`equipool.solvers` for `equipool.solvers.base.Solver`), by
    name: without the name of the base, in lower case, with hyphens."""
    package = import_module(".".join(base.__module__.split(".")[:2]))
    found = {}
    for name, one in sorted(vars(package).items()):
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
