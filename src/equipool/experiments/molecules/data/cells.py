"""Numbers in the cells of a table."""

from __future__ import annotations

import math

import numpy as np

MISSING = ("", "nan", "na", "n/a", "null", "none")
WORDS = dict.fromkeys(MISSING, math.nan) | {"true": 1.0, "false": 0.0}
LARGEST = float(np.finfo(np.float32).max)

# What most cells are, and what need not be looked at twice.
_COMMON = {"": math.nan, "0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}


def number_in(cell: str) -> float:
    """The number in a cell, NaN where it is missing; `ValueError` where there is something else.

    Example:
        >>> number_in("0.5"), number_in("True"), number_in(" NA ")
        (0.5, 1.0, nan)
    """
    if cell in _COMMON:
        return _COMMON[cell]
    word = cell.strip().lower()
    if word in WORDS:
        return WORDS[word]
    try:
        number = float(word)
    except ValueError:
        raise ValueError(f"expected a number, found {cell!r}") from None
    if not abs(number) <= LARGEST:
        raise ValueError(f"expected a finite float32 number, found {cell!r}")
    return number
