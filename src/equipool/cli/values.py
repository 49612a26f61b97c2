"""Values of fields, read from the command line and written as there."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

NOTHING = "none"


@dataclass(frozen=True)
class Reader:
    """Reads a value; `read` raises ValueError where the text is not what is `expected`."""

    read: Callable[[str], Any]
    expected: str


def _whole(text: str) -> int:
    """Also as 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


READERS: dict[Any, Reader] = {
    int: Reader(_whole, "a whole number"),
    float: Reader(float, "a number"),
    bool: Reader(_truth, "true or false"),
    str: Reader(str, "a name"),
    tuple[int, ...]: Reader(_wholes, "whole numbers such as 600x300x32"),
}


def reader_of(annotation: Any) -> Reader:
    """How values of a field of this type are read.

    Example:
        >>> reader_of(int).read("1e6"), reader_of(float | None).read("none")
        (1000000, None)
    """
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        if len(kinds) == 1 and kinds[0] in READERS:
            inner = READERS[kinds[0]]
            return Reader(
                lambda text: None if text.lower() == NOTHING else inner.read(text),
                f"{inner.expected} or {NOTHING}",
            )
    if annotation not in READERS:
        raise TypeError(f"there is no flag for a field of type {annotation}")
    return READERS[annotation]


def written(value: Any) -> str:
    """A value as on the command line.

    Example:
        >>> written(None), written(True), written((600, 300)), written(0.001)
        ('none', 'true', '600x300', '0.001')
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "x".join(str(part) for part in value)
    return str(value)
