"""Checks of what a part is made with, with errors in terms of the caller's arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex


def as_count(name: str, value: SupportsIndex, least: int = 0, expected: str | None = None) -> int:
    """A whole number of at least `least`, of any integer type, NumPy's included."""
    if type(value) is int and value >= least:
        return value
    message = f"{name} is {value!r}, expected {expected or f'an int of {least} or more'}"
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(message) from None
    if isinstance(value, bool):
        raise TypeError(message)
    if count < least:
        raise ValueError(message)
    return count


def check_sizes(**sizes: SupportsIndex) -> None:
    """Check that all of them are positive whole numbers."""
    for name, size in sizes.items():
        as_count(name, size, least=1)


def as_sizes(name: str, sizes: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """One or more positive whole numbers."""
    given = tuple(sizes) if isinstance(sizes, Iterable) else ()
    if not given:
        raise ValueError(f"{name} is {sizes!r}, expected at least one size, each 1 or more")
    return tuple(as_count(f"a size of {name}", size, least=1) for size in given)


def check_part(name: str, part: object, kind: type, example: str) -> None:
    """Reject a class or a number in place of one of the layer's parts."""
    if isinstance(part, kind):
        return
    if isinstance(part, type):
        found = f"the class {part.__name__}"
        example = f"{part.__name__}(...)" if issubclass(part, kind) else example
    else:
        found = repr(part)
    raise TypeError(
        f"{name} is {found}, expected an instance of {kind.__name__}, such as {example}"
    )
