"""The index of a table: its bags, and what it says about each bag as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from equipool.estimators.tables.schema import Place
from equipool.estimators.tables.source import TableError, as_text, number_from

UNSET = -2  # the value of a bag in a column, before its first row; -1 is a missing value


@dataclass
class BagIndex:
    """The bags of a table, their sizes, and their values in columns that are constant in each bag,
    collected over the batches."""

    table: str
    bag: str
    names: dict[str, str]  # of those columns, each with the reason why it must be constant
    numbers: dict[str, int] = field(default_factory=dict)  # of the bags, by id
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    texts: dict[str, dict[str, int]] = field(default_factory=dict)  # codes of values, by column
    values: dict[str, np.ndarray] = field(default_factory=dict)  # codes of the bags, by column

    def update(self, first: int, columns: dict[str, pa.Array]) -> Place:
        """Take in the next batch. Returns what names one of its rows."""
        bags, place = self.bags_of(first, columns[self.bag])
        self.counts = _grown(self.counts, len(self.numbers), 0)
        self.counts += np.bincount(bags, minlength=len(self.numbers))
        for name in self.names:
            self._add_values(name, columns[name], bags, place)
        return place

    def bags_of(self, first: int, column: pa.Array) -> tuple[np.ndarray, Place]:
        """The number of each row's bag, and what names one of the rows."""
        codes, names = as_text(column)
        if (codes == -1).any():
            row = first + np.flatnonzero(codes == -1)[0]
            raise TableError(f"{self.table}, row {row}: column {self.bag!r} does not name a bag")
        numbers = np.array([self.numbers.setdefault(name, len(self.numbers)) for name in names])

        def place(row: int) -> str:
            return f"{self.table}, row {first + row} (bag {names[codes[row]]!r})"

        return numbers[codes], place

    def labels(self, names: Sequence[str]) -> np.ndarray:
        """The labels of the bags, `[B]`. Several labels are numbers, `[B, labels]`, of which some
        may be missing."""
        if len(names) == 1:
            return values_from(self.values_of(names[0]))
        columns = [values_from(self._maybe_missing(name)) for name in names]
        for name, column in zip(names, columns, strict=True):
            if column.dtype.kind not in "if":
                raise TableError(f"column {name!r} has text: several labels must be numbers")
        return np.stack([column.astype(np.float64) for column in columns], axis=1)

    def weights(self, name: str) -> np.ndarray:
        """The weights of the bags, `[B]`."""
        weights = values_from(self.values_of(name))
        if weights.dtype.kind not in "if" or not (weights >= 0).all():
            raise TableError(f"column {name!r} must have weights, numbers of 0 or more")
        return weights.astype(np.float64)

    def values_of(self, name: str) -> list[str]:
        """The text of each bag in a column, none of which may be missing."""
        values = self._maybe_missing(name)
        if None in values:
            bag = list(self.numbers)[values.index(None)]
            raise TableError(f"{self.table}, bag {bag!r}: column {name!r} has no value")
        return [value for value in values if value is not None]

    def _maybe_missing(self, name: str) -> list[str | None]:
        texts = [*self.texts[name], None]
        return [texts[code] for code in self.values[name]]

    def _add_values(self, name: str, column: pa.Array, bags: np.ndarray, place: Place) -> None:
        codes, names = as_text(column)
        texts = self.texts.setdefault(name, {})
        own = np.array([*(texts.setdefault(text, len(texts)) for text in names), -1])[codes]
        known = self.values.get(name, np.zeros(0, np.int64))
        known = self.values[name] = _grown(known, len(self.numbers), UNSET)
        fresh = np.flatnonzero(known[bags] == UNSET)
        # Backwards, so that the first row of a bag is written last.
        known[bags[fresh[::-1]]] = own[fresh[::-1]]
        other = np.flatnonzero(known[bags] != own)
        if other.size:
            shown = [*(repr(text) for text in texts), "no value"]
            was, now = shown[known[bags[other[0]]]], shown[own[other[0]]]
            raise TableError(
                f"{place(other[0])}: column {name!r} has {now}, but {was} in earlier rows of the "
                f"bag: {self.names[name]}"
            )


def values_from(texts: Sequence[str | None]) -> np.ndarray:
    """Values as integers if all of them are whole numbers, as floats (NaN for None) if all are
    numbers, else as text.

    Example:
        >>> values_from(["1", "0.0"]), values_from(["1.5", None]), values_from(["1", "b"])
        (array([1, 0]), array([1.5, nan]), array(['1', 'b'], dtype='<U1'))
    """
    present = [text for text in texts if text is not None]
    numbers = np.array([np.nan if text is None else number_from(text) for text in texts])
    if np.isnan(numbers).sum() > len(texts) - len(present):
        return np.array(texts, dtype=str if len(present) == len(texts) else object)
    whole = len(present) == len(texts) and (np.abs(numbers) < 2**53).all()
    return numbers.astype(np.int64) if whole and not (numbers % 1).any() else numbers


def _grown(values: np.ndarray, size: int, fill: int) -> np.ndarray:
    return np.concatenate([values, np.full(size - len(values), fill, np.int64)])
