"""How the columns of a table become the features of elements. A model keeps its schema, so that
prediction reads tables as training did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from equipool.estimators.tables.source import (
    TableError,
    as_numbers,
    as_text,
    listed,
)

LARGEST = float(np.finfo(np.float32).max)

Missing = Literal["error", "mean", "keep"]
Unknown = Literal["error", "ignore"]
Place = Callable[[int], str]  # names the row of a batch, for messages


@dataclass(frozen=True)
class Feature:
    """A column that elements are described by.

    Args:
        name: of the column.
        categories: its values, if they are names; None if they are numbers.
        fill: the number that a missing one is replaced with; None if none may be missing. Missing
            categories are all zeros where this is a number.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the numbers that it gives."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.categories)

    def encode(self, column: pa.Array, place: Place, unknown: Unknown) -> np.ndarray:
        """The features of the rows of a batch, `[rows, channels]` float32: numbers, or 1 for the
        row's category and 0 for the others."""
        if self.categories is None:
            values, missing = as_numbers(column)
            check_finite(self.name, column, values, missing, place)
            self._check_missing(missing, place)
            if self.fill is not None:
                values = np.where(missing, self.fill, values)
            return values.astype(np.float32)[:, None]
        codes, names = as_text(column)
        self._check_missing(codes == -1, place)
        position = {value: number for number, value in enumerate(self.categories)}
        known = np.array([*(position.get(name, -2) for name in names), -1])[codes]
        if unknown == "error" and (strange := np.flatnonzero(known == -2)).size:
            found = f"column {self.name!r} has {names[codes[strange[0]]]!r}"
            raise TableError(
                f"{place(strange[0])}: {found}, which training did not have; it had "
                f"{listed(self.categories)}. To read it as none of them, pass unknown='ignore' "
                "(--unknown ignore)"
            )
        return (known[:, None] == np.arange(len(self.categories))).astype(np.float32)

    def _check_missing(self, missing: np.ndarray, place: Place) -> None:
        if self.fill is None and missing.any():
            raise TableError(
                f"{place(np.flatnonzero(missing)[0])}: column {self.name!r} has no value. Fill it "
                "in, or train the model again with missing='mean' (--missing mean) to use the "
                "column's mean"
            )


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table of bags, and how they are read.

    Args:
        bag: the column that names the bag of each element.
        labels: columns of the labels, which are the same in all rows of a bag.
        features: of the elements.
        weight: column of the bags' weights.

    Example:
        >>> features = Feature("size"), Feature("colour", ("blue", "red"))
        >>> schema = TableSchema("bag", ("label",), features)
        >>> schema.channels
        ('size', 'colour=blue', 'colour=red')
        >>> TableSchema.from_json(schema.to_json()) == schema
        True
    """

    bag: str
    labels: tuple[str, ...]
    features: tuple[Feature, ...]
    weight: str | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the numbers that describe an element."""
        return tuple(name for feature in self.features for name in feature.channels)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TableSchema:
        """The schema that `to_json` described."""
        features = (
            Feature(one["name"], _tuple(one["categories"]), one["fill"])
            for one in content["features"]
        )
        return cls(content["bag"], tuple(content["labels"]), tuple(features), content["weight"])


def check_finite(
    name: str, column: pa.Array, values: np.ndarray, missing: np.ndarray, place: Place
) -> None:
    """Refuse cells of a column that are present and are no finite numbers of float32."""
    broken = np.flatnonzero(~(np.abs(values) <= LARGEST) & ~missing)
    if broken.size:
        found = column[int(broken[0])].as_py()
        expected = "expected a finite number"
        raise TableError(f"{place(broken[0])}: column {name!r} has {found!r}, {expected}")


def _tuple(values: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
