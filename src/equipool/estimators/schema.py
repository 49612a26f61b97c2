"""How the columns of a table become the features of elements.

A model keeps its schema, so that prediction reads tables as training did.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from equipool.estimators.bags import Array
from equipool.tables import Table, TableError, listed, number_from

LARGEST = float(np.finfo(np.float32).max)
MAX_CATEGORIES = 100
# Numbers with a decimal comma or thousand separators, percentages, prices, and dates other than
# 2024-01-31. They are text, and would be a category each.
NUMBER_LIKE = re.compile(
    r"[(+\-\u2212]?[$€£]?\s?\d+([.,'_ \u00a0\u202f]\d+)*([.,]\d+)?\s?[%$€£]?\)?"
    r"|\d{1,4}([./-])(\d{1,2}|[A-Za-z]{3,9})\3\d{1,4}([ T].*)?|\d{1,2} [A-Za-z]{3,9} \d{2,4}.*"
    r"|(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.? \d{1,2},? \d{4}.*"
    r"|(19|20)\d\d[-/](0[1-9]|1[0-2])|(0[1-9]|1[0-2])/(19|20)\d\d"
)

Missing = Literal["error", "mean", "keep"]
Unknown = Literal["error", "ignore"]


@dataclass(frozen=True)
class Feature:
    """A column that describes elements.

    Args:
        name: of the column.
        categories: its values, if they are names; None if they are numbers.
        fill: the number that replaces a missing one; None if none may be missing. Missing
            categories are all zeros where this is a number.
        dates: whether its numbers are the seconds of dates or times.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | None = None
    dates: bool = False

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the numbers that it gives."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.categories)

    def write(self, table: Table, unknown: Unknown, out: Array, to: Array) -> None:
        """Write the features of row i to row `to[i]` of `out [rows, channels]`, which is zero:
        numbers, or 1 for the row's category."""
        if self.categories is not None:
            known = self._known(table, unknown)
            rows = np.flatnonzero(known >= 0)
            out[to[rows], known[rows]] = 1
            return
        values = table.numbers(self.name)
        missing = np.isnan(values)
        if self.dates != table.has_dates(self.name) and not missing.all():
            now, before = ("numbers", "dates") if self.dates else ("dates", "numbers")
            raise TableError(f"column {self.name!r} has {now}, but {before} in training")
        self._check_missing(table, missing)
        check_finite(table, self.name, values)
        out[to, 0] = values if self.fill is None else np.where(missing, self.fill, values)

    def _known(self, table: Table, unknown: Unknown) -> Array:
        """The number of each row's category, or below 0."""
        assert self.categories is not None
        codes, names = table.text(self.name)
        self._check_missing(table, codes == -1)
        position = {value: number for number, value in enumerate(self.categories)}
        known = np.array([*(position.get(name, -2) for name in names), -1])[codes]
        if unknown == "error" and (strange := np.flatnonzero(known == -2)).size:
            found = f"column {self.name!r} has {names[codes[strange[0]]]!r}"
            raise TableError(
                f"{table.place(strange[0])}: {found}, which training did not have; it had "
                f"{listed(self.categories)}. To read it as none of them, pass unknown='ignore' "
                "(--unknown ignore)"
            )
        return known

    def _check_missing(self, table: Table, missing: Array) -> None:
        if self.fill is None and missing.any():
            raise TableError(
                f"{table.place(missing.argmax())}: column {self.name!r} has no value. Fill it in, "
                "or train the model again with missing='mean' (--missing mean) to use the column's "
                "mean"
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
        features = tuple(
            Feature(**one | {"categories": one["categories"] and tuple(one["categories"])})
            for one in content["features"]
        )
        return cls(content["bag"], tuple(content["labels"]), features, content["weight"])


def check_finite(table: Table, name: str, values: Array) -> None:
    """Refuse infinity, and numbers too large for float32."""
    broken = np.flatnonzero(np.abs(values) > LARGEST)
    if broken.size:
        found = f"column {name!r} has {values[broken[0]]:g}, expected a finite float32 number"
        raise TableError(f"{table.place(broken[0])}: {found}")


def learn_features(
    table: Table, names: Sequence[str], categories: Sequence[str], missing: Missing
) -> tuple[Feature, ...]:
    found = {name: _learn_feature(table, name, name in categories, missing) for name in names}
    constant = [name for name, feature in found.items() if feature is None]
    if len(constant) == len(found):
        raise TableError(f"{table.name}: all features are constant: {listed(constant)}")
    if constant:
        warnings.warn(f"left out, as all values are equal: {listed(constant)}", stacklevel=3)
    features = tuple(feature for feature in found.values() if feature is not None)
    if dates := [feature.name for feature in features if feature.dates]:
        warnings.warn(f"dates and times are read as seconds: {listed(dates)}", stacklevel=3)
    return features


def _learn_feature(table: Table, name: str, names: bool, missing: Missing) -> Feature | None:
    """The feature that a column is; None if all its values are equal."""
    leave_out = f"leave the column out with exclude=[{name!r}] (--exclude {name})"
    if names or (table.is_text(name) and _has_names(table, name)):
        codes, values = table.text(name)
        empty = codes == -1
    else:
        numbers = table.numbers(name, f": correct it, or {leave_out}")
        check_finite(table, name, numbers)
        empty = np.isnan(numbers)
        values = None
    if missing == "error" and empty.any():
        raise TableError(
            f"{table.place(empty.argmax())}: column {name!r} has no value. Fill it in, "
            f"{leave_out}, or pass missing='mean' (--missing mean) to use the column's mean"
        )
    if values is not None:
        if len(values) > MAX_CATEGORIES:
            raise TableError(
                f"column {name!r} has more than {MAX_CATEGORIES} different values, such as "
                f"{min(values)!r}: {leave_out}, or name the columns to use with features "
                "(--features)"
            )
        fill = None if missing == "error" else 0.0
        return Feature(name, tuple(sorted(values)), fill) if values[1:] else None
    present = numbers[~empty]
    if not present.size or present.min() == present.max():
        return None
    fills = {"error": None, "mean": float(present.mean()), "keep": np.nan}
    return Feature(name, None, fills[missing], table.has_dates(name))


def _has_names(table: Table, name: str) -> bool:
    """Whether a column of text has names. Refuses a mixture of names and numbers."""
    codes, values = table.text(name)
    text = [value for value in values if np.isnan(number_from(value))]
    advice = f", or pass categories=[{name!r}] (--categories {name}) if its values are names"
    if like := next(filter(is_like_number, text), None):
        row = (codes == values.index(like)).argmax()
        dates = "dates such as 2024-01-31" if table.csv else "values of a date type"
        raise TableError(
            f"{table.place(row)}: column {name!r} has {like!r}, expected numbers such as 1234.5, "
            f"without thousand separators, or {dates} in all rows{advice}"
        )
    if 0 < len(text) < len(values):
        table.numbers(name, f" as in other rows: correct it{advice}")
    return bool(text)


def is_like_number(value: str) -> bool:
    """Whether a text is a number or a date in a form that is not read.

    Example:
        >>> is_like_number("1,5"), is_like_number("1.234,5"), is_like_number("31.12.2024")
        (True, True, True)
        >>> is_like_number("1.5"), is_like_number("18-25"), is_like_number("red")
        (False, False, False)
    """
    return NUMBER_LIKE.fullmatch(value) is not None and bool(np.isnan(number_from(value)))
