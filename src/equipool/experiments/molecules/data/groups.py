"""Which group each molecule is in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class Groups:
    """Molecules by the name of their group; groups are numbered as they appear.

    Example:
        >>> groups = Groups(["ring", "chain", "ring"])
        >>> groups.numbers.tolist(), groups.names
        ([0, 1, 0], ['ring', 'chain'])
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        self._members = array("q")
        self.extend(names)

    def extend(self, names: Iterable[str]) -> None:
        """Add the next molecules' groups."""
        numbers = self._numbers
        self._members.extend(numbers.setdefault(name, len(numbers)) for name in names)

    def __len__(self) -> int:
        """Number of molecules."""
        return len(self._members)

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The group of each molecule, `[G]`."""
        return np.array(self._members, dtype=np.int64)
