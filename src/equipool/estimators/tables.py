"""Bags of a table with one row per element: how its columns become features, labels and weights.

A model keeps its schema, so that prediction reads tables as training did.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from equipool.estimators.bags import Array, Bags, offsets
from equipool.settings import check
from equipool.tables import (
    WHOLE,
    Table,
    TableError,
    is_beyond_floats,
    listed,
    number_from,
    open_table,
    write_file,
)

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

    def read(self, table: Table, unknown: Unknown) -> Array:
        """The features of each row, `[rows, channels]`: a number, or 1 for the row's category."""
        if self.categories is not None:
            codes, names = table.text(self.name)
            self._check_missing(table, codes == -1)
            position = {value: number for number, value in enumerate(self.categories)}
            known = np.array([*(position.get(name, -2) for name in names), -1])[codes]
            if unknown == "error" and (known == -2).any():
                row = (known == -2).argmax()
                raise TableError(
                    f"{table.place(row)}: column {self.name!r} has {names[codes[row]]!r}, which "
                    f"training did not have; it had {listed(self.categories)}. To read it as none "
                    "of them, pass unknown='ignore' (--unknown ignore)"
                )
            return np.asarray(known[:, None] == np.arange(len(position)), np.float64)
        values = table.numbers(self.name)
        missing = np.isnan(values)
        if self.dates != table.has_dates(self.name) and not missing.all():
            now, before = ("numbers", "dates") if self.dates else ("dates", "numbers")
            raise TableError(f"column {self.name!r} has {now}, but {before} in training")
        self._check_missing(table, missing)
        if (broken := np.flatnonzero(np.abs(values) > LARGEST)).size:
            raise TableError(
                f"{table.place(broken[0])}: column {self.name!r} has {values[broken[0]]:g}, "
                "expected a finite float32 number"
            )
        return np.where(missing, np.nan if self.fill is None else self.fill, values)[:, None]

    def _check_missing(self, table: Table, missing: Array) -> None:
        if self.fill is None and missing.any():
            raise TableError(
                f"{table.place(missing.argmax())}: column {self.name!r} has no value. Fill it in, "
                "or train with missing='mean' (--missing mean), which uses the column's mean"
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
        >>> from dataclasses import asdict
        >>> features = Feature("size"), Feature("colour", ("blue", "red"))
        >>> schema = TableSchema("bag", ("label",), features)
        >>> schema.channels
        ('size', 'colour=blue', 'colour=red')
        >>> TableSchema.from_json(asdict(schema)) == schema
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

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TableSchema:
        """The schema that was written as JSON with `dataclasses.asdict`."""
        features = tuple(
            Feature(**one | {"categories": one["categories"] and tuple(one["categories"])})
            for one in content["features"]
        )
        return cls(content["bag"], tuple(content["labels"]), features, content["weight"])


def learn_features(
    table: Table, names: Sequence[str], categories: Sequence[str], missing: Missing
) -> tuple[Feature, ...]:
    found = [_learn_feature(table, name, name in categories, missing) for name in names]
    features = tuple(feature for feature in found if feature is not None)
    constant = [name for name, feature in zip(names, found, strict=True) if feature is None]
    if not features:
        raise TableError(f"{table.name}: all features are constant: {listed(constant)}")
    if constant:
        warnings.warn(f"left out, as all values are equal: {listed(constant)}", stacklevel=3)
    if dates := [feature.name for feature in features if feature.dates]:
        warnings.warn(f"dates and times are read as seconds: {listed(dates)}", stacklevel=3)
    return features


def _learn_feature(table: Table, name: str, names: bool, missing: Missing) -> Feature | None:
    """The feature that a column is; None if all its values are equal."""
    leave_out = f"leave the column out with exclude=[{name!r}] (--exclude {name})"
    if names or (table.is_text(name) and _has_names(table, name)):
        _, values = table.text(name)
        if len(values) > MAX_CATEGORIES:
            raise TableError(
                f"column {name!r} has more than {MAX_CATEGORIES} different values, such as "
                f"{min(values)!r}: {leave_out}, or name the columns to use with features "
                "(--features)"
            )
        fill = None if missing == "error" else 0.0
        return Feature(name, tuple(sorted(values)), fill) if values[1:] else None
    numbers = table.numbers(name, f": correct it, or {leave_out}")
    present = numbers[~np.isnan(numbers)]
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


@dataclass(frozen=True, eq=False)
class TableBags:
    """The bags of a table, in the order in which they first appear.

    Args:
        ids: of the bags, as text.
        bags: their elements, float64, in the order of the rows.
        rows: the row of each element in the table, from 0.
        y: labels of the bags, `[B]`, or `[B, labels]` with NaN for missing ones; None if not read.
        group: the group of each bag, as text.
        weight: of each bag.
    """

    ids: list[str]
    bags: Bags
    rows: Array
    y: Array | None = None
    group: Array | None = None
    weight: Array | None = None

    def number(self, bag: str) -> int:
        """The position of a bag, by its id."""
        if bag not in self.ids:
            raise ValueError(f"the table has no bag {bag!r}: it has {listed(self.ids)}")
        return self.ids.index(bag)


def read_training_table(
    table: Any, *, bag: str, label: str | Sequence[str], features: Sequence[str] | None = None,
    exclude: Sequence[str] = (), categories: Sequence[str] = (), missing: Missing = "error",
    weight: str | None = None, group: str | None = None,
) -> tuple[TableSchema, TableBags]:  # fmt: skip
    """Read a table with one row per element, and learn its schema.

    Args:
        table: a path or a table in memory; see `equipool.tables.open_table`.
        bag: column that names the bag of each element.
        label: column of the label, or several. It must be the same in all rows of a bag.
        features: columns that describe the elements. Default: all that are left, with a warning
            about those that are the same in all rows of each bag. A column of text becomes one
            number per category, 1 for the row's own and 0 otherwise; dates become seconds.
        exclude: columns that are not features.
        categories: columns of numbers to read as categories.
        missing: `"error"`, `"mean"` to replace missing numbers with the column's mean, or `"keep"`
            to leave them NaN. A missing category is zero for every category.
        weight: column of the bags' weights.
        group: column of groups of bags, for folds.

    Example:
        >>> table = {"bag": ["a", "b", "a"], "label": [1, 0, 1], "size": [0.5, 2.0, 1.5]}
        >>> schema, found = read_training_table(table, bag="bag", label="label")
        >>> found.ids, found.y, found.bags[0]
        (['a', 'b'], array([1, 0]), array([[0.5],
               [1.5]]))
    """
    source = open_table(table)
    labels = (label,) if isinstance(label, str) else tuple(label)
    special = [bag, *labels, *(name for name in (group, weight) if name is not None)]
    source.check_columns([*special, *exclude, *categories])
    left = set(source.columns) - {*special, *exclude}
    used = [name for name in source.columns if name in left] if features is None else list(features)
    source.check_columns(used)
    if twice := [name for name, count in Counter([*special, *used]).items() if count > 1]:
        raise ValueError(
            f"column {twice[0]!r} is used twice: the bag, labels, group, weight and features must "
            "be different columns"
        )
    if not used:
        raise TableError("no column is left for the features of the elements")
    text = [*special, *categories]
    held = source.read([*text, *used], text, bag)
    index = BagIndex(held)
    y = index.labels(labels)
    groups = None if group is None else np.array(index.texts(group, "it would be in two folds"))
    weights = None if weight is None else index.weights(weight)
    schema = TableSchema(bag, labels, learn_features(held, used, categories, missing), weight)
    found = replace(index.bags(schema, "error"), y=y, group=groups, weight=weights)
    if features is None and (names := columns_of_bags(schema, found.bags)):
        warnings.warn(
            f"features that are the same in all rows of each bag: {listed(names)}. They describe "
            f"bags, not elements. Leave out outcomes and groups with exclude=[{names[0]!r}] "
            f"(--exclude {names[0]})",
            stacklevel=2,
        )
    return schema, found


def read_table(table: Any, schema: TableSchema, *, unknown: Unknown = "error") -> TableBags:
    """Read a table as the one that a model was trained on, without labels.

    Args:
        table: a path or a table in memory; see `equipool.tables.open_table`.
        schema: of the model.
        unknown: `"error"`, or `"ignore"` to treat a category that training did not have as missing.
    """
    check("unknown", unknown, Unknown)
    names = [feature.name for feature in schema.features]
    text = [feature.name for feature in schema.features if feature.categories is not None]
    held = open_table(table).read([schema.bag, *names], [schema.bag, *text], schema.bag)
    return BagIndex(held).bags(schema, unknown)


class BagIndex:
    """The bags of a table, and what it says about each bag as a whole."""

    def __init__(self, table: Table) -> None:
        assert table.bag is not None
        self.table, self.name = table, table.bag
        codes, names = table.text(self.name)
        if (codes == -1).any():
            row = (codes == -1).argmax()
            raise TableError(f"{table.place(row)}: column {self.name!r} does not name a bag")
        present, first, self.of_rows = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they appear
        self.of_rows = np.argsort(order)[self.of_rows]
        self.first, self.ids = first[order], [names[code] for code in present[order]]

    def bags(self, schema: TableSchema, unknown: Unknown) -> TableBags:
        """Put the elements in the order of their bags, in the order of the rows in each."""
        rows = np.argsort(self.of_rows, kind="stable")
        parts = [feature.read(self.table, unknown)[rows] for feature in schema.features]
        sizes = np.bincount(self.of_rows)
        bags = Bags(np.concatenate(parts, axis=1), offsets(sizes), schema.channels)
        return TableBags(self.ids, bags, rows)

    def labels(self, names: Sequence[str]) -> Array:
        """The labels of the bags, `[B]`. Several labels are numbers, `[B, labels]`, of which some
        may be missing."""
        columns = []
        for name in names:
            texts = self.texts(name, "a bag has one label", missing=len(names) > 1)
            if like := next(filter(is_like_number, texts), None):
                raise TableError(
                    f"{self.table.place(self.first[texts.index(like)])}: column {name!r} has "
                    f"{like!r}, expected names, or numbers such as 1234.5 without thousand "
                    "separators"
                )
            columns.append(values_from(texts))
            if len(names) > 1 and columns[-1].dtype.kind not in "if":
                raise TableError(f"column {name!r} has text: several labels must be numbers")
        return np.stack(columns, axis=1) if len(names) > 1 else columns[0]

    def weights(self, name: str) -> Array:
        """The weights of the bags, `[B]`."""
        weights = values_from(self.texts(name, "a bag has one weight"))
        if weights.dtype.kind not in "if" or not (weights >= 0).all():
            raise TableError(f"column {name!r} must have weights, numbers of 0 or more")
        return weights.astype(np.float64)

    def texts(self, name: str, reason: str, missing: bool = False) -> list[str]:
        """The text of each bag in a column, which may not vary in a bag; "" where it is missing, if
        it may be."""
        codes, names = self.table.text(name)
        names = [*names, ""]
        own = codes[self.first]
        if (other := np.flatnonzero(codes != own[self.of_rows])).size:
            row = other[0]
            now, was = (
                repr(names[code]) if code >= 0 else "no value"
                for code in (codes[row], own[self.of_rows[row]])
            )
            raise TableError(
                f"{self.table.place(row)}: column {name!r} has {now}, but {was} in earlier rows of "
                f"the bag: {reason}"
            )
        if not missing and (own == -1).any():
            bag = self.ids[(own == -1).argmax()]
            raise TableError(f"{self.table.name}, bag {bag!r}: column {name!r} has no value")
        return [names[code] for code in own]


def values_from(texts: Sequence[str]) -> Array:
    """Values as integers if all of them are whole numbers, as floats (NaN for "") if all are
    numbers, else as text. Whole numbers that a float cannot tell apart stay text beside others.

    Example:
        >>> values_from(["1", "0.0"]), values_from(["1.5", ""]), values_from(["1", "b"])
        (array([1, 0]), array([1.5, nan]), array(['1', 'b'], dtype='<U1'))
    """
    if all(WHOLE.fullmatch(text) for text in texts):
        integers = np.array([int(text) for text in texts])
        if integers.dtype == np.int64:
            return integers
    numbers = np.array([number_from(text) for text in texts])
    present = np.array(texts) != ""
    if any(map(is_beyond_floats, texts)) or not np.isfinite(numbers[present]).all():
        return np.array(texts)
    exact = present.all() and not (numbers % 1).any() and np.abs(numbers).max() <= 2**53
    return numbers.astype(np.int64) if exact else numbers


def columns_of_bags(schema: TableSchema, bags: Bags) -> list[str]:
    """Names of the features that are the same in all elements of each bag. None if every bag has
    one element.

    Example:
        >>> schema = TableSchema("bag", ("label",), (Feature("size"), Feature("age")))
        >>> columns_of_bags(schema, Bags(np.array([[1, 7], [2, 7], [3, 8]]), np.array([0, 2, 3])))
        ['age']
    """
    x, rows = bags.elements, np.delete(np.arange(len(bags.elements)), bags.ptr[:-1])
    names, begin = [], 0  # rows whose element before is of the same bag
    for feature in schema.features:
        part = slice(begin, begin + len(feature.channels))
        if len(rows) and np.array_equal(x[rows, part], x[rows - 1, part], equal_nan=True):
            names.append(feature.name)
        begin = part.stop
    return names


class TableMethods:
    """`fit_table`, `predict_table` and `influence_table` of an estimator."""

    table_schema_: TableSchema  # of the table it was trained on, if it was one

    def fit_table(
        self, table: Any, *, bag: str, label: str | Sequence[str],
        features: Sequence[str] | None = None, exclude: Sequence[str] = (),
        categories: Sequence[str] = (), missing: Literal["error", "mean"] = "error",
        weight: str | None = None,
    ) -> Self:  # fmt: skip
        """Train on a table with one row per element, in any order.

        Args:
            table: the path of a CSV file, of a gzipped one or of a Parquet file; or a table of
                pyarrow, or a data frame of pandas or polars.
            bag: column that names the bag of each element.
            label: column of the label, or several columns of numbers. A label must be the same in
                all rows of a bag.
            features: columns that describe the elements. Default: all that are left. A column of
                text becomes one number per category, 1 for the row's own and 0 otherwise.
            exclude: columns that are not features.
            categories: columns of numbers to read as categories.
            missing: `"error"`, or `"mean"` to replace missing numbers with the column's mean; a
                missing category is then zero for every category.
            weight: column of the bags' weights.
        """
        check("missing", missing, Literal["error", "mean"])
        schema, found = read_training_table(
            table, bag=bag, label=label, features=features, exclude=exclude, categories=categories,
            missing=missing, weight=weight,
        )  # fmt: skip
        fit_bags(self, schema, found)
        return self

    def predict_table(self, table: Any, *, unknown: Unknown = "error") -> pa.Table:
        """Predict the bags of a table, which needs the columns of the training table except for the
        labels.

        Args:
            table: as in `fit_table`.
            unknown: `"error"`, or `"ignore"` to read a category that training did not have as none
                of those it had.

        Returns:
            One row per bag, in the order in which the bags first appear: the bag, `predicted_LABEL`
            for each label column, and a classifier's probabilities; of several labels a classifier
            gives the probabilities alone. `to_pandas()` makes it a data frame.
        """
        found = self._read_table(table, unknown)
        return pa.table({self.table_schema_.bag: found.ids} | self._predicted_columns(found.bags))

    def influence_table(
        self, table: Any, *, bags: Iterable[str] | None = None, unknown: Unknown = "error"
    ) -> pa.Table:
        """What each element of a table contributes to the prediction of its bag: the
        `decision_function`, or the number predicted, with the element minus that without it.

        Args:
            table: as in `predict_table`.
            bags: those to explain. Default: all.
            unknown: as in `predict_table`.

        Returns:
            One row per element, in each bag the strongest first: its bag, its row in the table
            (from 0), and its `influence`, or `influence on NAME` for more than two classes or
            several labels.
        """
        found = self._read_table(table, unknown)
        model: Any = self
        numbers = range(len(found.ids)) if bags is None else [found.number(bag) for bag in bags]
        ids, rows, parts = [], [], []
        for number in numbers:
            (influence,) = model.influence(found.bags[number : number + 1])
            columns = influence.reshape(len(influence), -1)
            strongest = np.argsort(-np.abs(columns).max(1), kind="stable")
            ids += [found.ids[number]] * len(columns)
            rows.append(found.rows[found.bags.ptr[number] : found.bags.ptr[number + 1]][strongest])
            parts.append(columns[strongest])
        values = np.concatenate(parts)
        labels = self.table_schema_.labels
        names: Sequence[Any] = labels if len(labels) > 1 else getattr(self, "classes_", labels)
        titles = [f"influence on {name}" for name in names]
        return pa.table(
            {self.table_schema_.bag: ids, "row": np.concatenate(rows)}
            | dict(zip(["influence"] if values.shape[1] == 1 else titles, values.T, strict=True))
        )

    def _read_table(self, table: Any, unknown: Unknown) -> TableBags:
        check_is_fitted(self)
        if not hasattr(self, "table_schema_"):
            raise ValueError("the model was not trained on a table: use predict instead")
        return read_table(table, self.table_schema_, unknown=unknown)

    def _predicted_columns(self, bags: Bags) -> dict[str, Any]:
        model: Any = self
        labels = self.table_schema_.labels
        if not is_classifier(self):
            values = model.predict(bags).reshape(len(bags), len(labels))
            return {f"predicted_{label}": values[:, column] for column, label in enumerate(labels)}
        several = len(labels) > 1
        columns = model.predict_proba(bags).T
        found = {} if several else {f"predicted_{labels[0]}": model.classes_[columns.argmax(0)]}
        titles = [f"probability of {name}" for name in (labels if several else model.classes_)]
        return found | dict(zip(titles, columns, strict=True))


def fit_bags(estimator: Any, schema: TableSchema, found: TableBags) -> None:
    """Train an estimator on a table that `read_training_table` has read."""
    y = np.asarray(found.y)
    if not is_classifier(estimator) and y.dtype.kind not in "if":
        text = next((one for one in y if not np.isfinite(number_from(one))), y[0])
        raise TableError(
            f"column {schema.labels[0]!r} has text such as {str(text)!r}: a regressor needs numbers"
        )
    estimator.fit(found.bags, y, sample_weight=found.weight)
    estimator.table_schema_ = schema


def write_table(
    path: str | Path, bags: Sequence[NDArray[Any]], labels: Sequence[Any] | NDArray[Any]
) -> None:
    """Write bags as a table with one row per element and the columns `bag`, `label`, `x0`, `x1`,
    ...

    Args:
        path: ends in `.csv`, `.csv.gz` or `.parquet`.
        bags: arrays `[n_i, d]`, none of them empty.
        labels: of the bags.
    """
    if not all(len(bag) for bag in bags):
        raise ValueError("a bag is empty: a table cannot have bags without rows")
    sizes = [len(bag) for bag in bags]
    x = np.concatenate(bags)
    columns = {"bag": np.repeat(np.arange(len(bags)), sizes), "label": np.repeat(labels, sizes)}
    columns |= {f"x{number}": x[:, number] for number in range(x.shape[1])}
    write_file(pa.table(columns), path)
