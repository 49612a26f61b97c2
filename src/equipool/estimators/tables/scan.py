"""What the columns of a training table hold, and the features they become."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from equipool.estimators.tables.schema import Feature, Missing, Place, check_finite
from equipool.estimators.tables.source import TableError, as_numbers, as_text, is_readable

MAX_CATEGORIES = 100


@dataclass
class ColumnScan:
    """What a column that may become a feature holds, collected over the batches of a table.

    Args:
        name: of the column.
        names: whether its values are categories though they may look like numbers.
        missing: whether missing numbers are an error, replaced with the mean, or NaN.
    """

    name: str
    names: bool
    missing: Missing
    categories: set[str] = field(default_factory=set)
    number_at: str | None = None  # the first row with a number
    text_at: str | None = None  # the first row with text
    sum: float = 0.0
    count: int = 0
    low: float = np.inf
    high: float = -np.inf

    def update(self, column: pa.Array, place: Place) -> None:
        """Take in the column's next batch."""
        if not is_readable(column.type):
            raise TableError(
                f"column {self.name!r} has values of type {column.type}: turn them into numbers, "
                f"or leave the column out with exclude=[{self.name!r}] (--exclude {self.name})"
            )
        values, missing = as_numbers(column)
        if self.missing == "error" and missing.any():
            raise TableError(
                f"{place(np.flatnonzero(missing)[0])}: column {self.name!r} has no value. Fill it "
                f"in, leave the column out with exclude=[{self.name!r}] (--exclude {self.name}), "
                "or pass missing='mean' (--missing mean) to use the column's mean"
            )
        text = np.isnan(values) & ~missing
        if not self.names:
            self._check_mixture(text, ~text & ~missing, column, place)
        if self.names or text.any():
            self._add_categories(column)
        else:
            check_finite(self.name, column, values, missing, place)
            self._add_numbers(values[~missing])

    def feature(self) -> Feature | None:
        """The feature that the column is; None if all its values are equal."""
        if self.categories:
            categories = tuple(sorted(self.categories))
            fill = None if self.missing == "error" else 0.0
            return Feature(self.name, categories, fill) if categories[1:] else None
        if not self.low < self.high:
            return None
        fills = {"error": None, "mean": self.sum / self.count, "keep": np.nan}
        return Feature(self.name, None, fills[self.missing])

    def _check_mixture(
        self, text: np.ndarray, numbers: np.ndarray, column: pa.Array, place: Place
    ) -> None:
        if self.number_at is None and numbers.any():
            self.number_at = place(np.flatnonzero(numbers)[0])
        if self.text_at is None and text.any():
            row = np.flatnonzero(text)[0]
            self.text_at = f"{place(row)}: column {self.name!r} has {column[int(row)].as_py()!r}"
        if self.number_at is not None and self.text_at is not None:
            raise TableError(
                f"{self.text_at}, expected a number as in {self.number_at}. Correct it, or pass "
                f"categories=[{self.name!r}] (--categories {self.name}) if its values are names"
            )

    def _add_categories(self, column: pa.Array) -> None:
        self.categories.update(as_text(column)[1])
        if len(self.categories) > MAX_CATEGORIES:
            raise TableError(
                f"column {self.name!r} has more than {MAX_CATEGORIES} different values, such as "
                f"{min(self.categories)!r}. Leave it out with exclude=[{self.name!r}] "
                f"(--exclude {self.name}), or name the columns to use with features (--features)"
            )

    def _add_numbers(self, values: np.ndarray) -> None:
        if values.size:
            self.sum += float(values.sum())
            self.count += values.size
            self.low = min(self.low, float(values.min()))
            self.high = max(self.high, float(values.max()))
