"""Bags of a table with one row per element."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipool.estimators.bags import Array, Bags
from equipool.estimators.schema import (
    Missing,
    TableSchema,
    Unknown,
    is_like_number,
    learn_features,
)
from equipool.settings import check
from equipool.tables import (
    WHOLE,
    Table,
    TableError,
    is_beyond_floats,
    listed,
    number_from,
    open_table,
)


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
    special = [name for name in (group, weight) if name is not None]
    source.check_columns([bag, *labels, *special, *exclude, *categories])
    left = set(source.columns) - {bag, *labels, *special, *exclude}
    used = [name for name in source.columns if name in left] if features is None else list(features)
    source.check_columns(used)
    _check_apart(bag, labels, special, used)
    text = [bag, *labels, *special, *categories]
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
        to = np.empty_like(rows)
        to[rows] = np.arange(len(rows))
        x = np.zeros((len(rows), len(schema.channels)))
        begin = 0
        for feature in schema.features:
            end = begin + len(feature.channels)
            feature.write(self.table, unknown, x[:, begin:end], to)
            begin = end
        ptr = np.concatenate([[0], np.cumsum(np.bincount(self.of_rows))])
        return TableBags(self.ids, Bags(x, ptr, schema.channels), rows)

    def labels(self, names: Sequence[str]) -> Array:
        """The labels of the bags, `[B]`. Several labels are numbers, `[B, labels]`, of which some
        may be missing."""
        reason = "a bag has one label"
        if len(names) == 1:
            texts = self.texts(names[0], reason)
            if like := next(filter(is_like_number, texts), None):
                row = self.first[texts.index(like)]
                raise TableError(
                    f"{self.table.place(row)}: column {names[0]!r} has {like!r}, expected names, "
                    "or numbers such as 1234.5 without thousand separators"
                )
            return values_from(texts)
        columns = [values_from(self._maybe_missing(name, reason)) for name in names]
        for name, column in zip(names, columns, strict=True):
            if column.dtype.kind not in "if":
                raise TableError(f"column {name!r} has text: several labels must be numbers")
        return np.stack([column.astype(np.float64) for column in columns], axis=1)

    def weights(self, name: str) -> Array:
        """The weights of the bags, `[B]`."""
        weights = values_from(self.texts(name, "a bag has one weight"))
        if weights.dtype.kind not in "if" or not (weights >= 0).all():
            raise TableError(f"column {name!r} must have weights, numbers of 0 or more")
        return weights.astype(np.float64)

    def texts(self, name: str, reason: str) -> list[str]:
        """The text of each bag in a column, which may not vary in a bag, nor be missing."""
        values = self._maybe_missing(name, reason)
        if None in values:
            bag = self.ids[values.index(None)]
            raise TableError(f"{self.table.name}, bag {bag!r}: column {name!r} has no value")
        return [value for value in values if value is not None]

    def _maybe_missing(self, name: str, reason: str) -> list[str | None]:
        codes, names = self.table.text(name)
        other = np.flatnonzero(codes != codes[self.first][self.of_rows])
        shown = [*map(repr, names), "no value"]
        if other.size:
            row = other[0]
            was, now = shown[codes[self.first[self.of_rows[row]]]], shown[codes[row]]
            raise TableError(
                f"{self.table.place(row)}: column {name!r} has {now}, but {was} in earlier rows of "
                f"the bag: {reason}"
            )
        return [None if code == -1 else names[code] for code in codes[self.first]]


def values_from(texts: Sequence[str | None]) -> Array:
    """Values as integers if all of them are whole numbers, as floats (NaN for None) if all are
    numbers, else as text. Whole numbers that a float cannot tell apart stay text beside others.

    Example:
        >>> values_from(["1", "0.0"]), values_from(["1.5", None]), values_from(["1", "b"])
        (array([1, 0]), array([1.5, nan]), array(['1', 'b'], dtype='<U1'))
    """
    present = [text for text in texts if text is not None]
    whole = len(present) == len(texts)
    if whole and all(WHOLE.fullmatch(text) for text in present):
        integers = [int(text) for text in present]
        if max(map(abs, integers)) < 2**63:
            return np.array(integers, np.int64)
    numbers = np.array([np.nan if text is None else number_from(text) for text in texts])
    merged = any(map(is_beyond_floats, present))
    if merged or (~np.isfinite(numbers)).sum() > len(texts) - len(present):
        return np.array(texts, dtype=str if whole else object)
    exact = whole and not (numbers % 1).any() and np.abs(numbers).max() <= 2**53
    return numbers.astype(np.int64) if exact else numbers


def columns_of_bags(schema: TableSchema, bags: Bags) -> list[str]:
    """Names of the features that are the same in all elements of each bag. None if every bag has
    one element.

    Example:
        >>> from equipool.estimators.schema import Feature
        >>> schema = TableSchema("bag", ("label",), (Feature("size"), Feature("age")))
        >>> columns_of_bags(schema, Bags(np.array([[1, 7], [2, 7], [3, 8]]), np.array([0, 2, 3])))
        ['age']
    """
    inside = np.ones(len(bags.elements), bool)  # whether the element before is of the same bag
    inside[bags.ptr[:-1]] = False
    rows = np.flatnonzero(inside)
    names, begin = [], 0
    for feature in schema.features:
        end = begin + len(feature.channels)
        now, before = bags.elements[rows, begin:end], bags.elements[rows - 1, begin:end]
        if len(rows) and ((now == before) | (np.isnan(now) & np.isnan(before))).all():
            names.append(feature.name)
        begin = end
    return names


def _check_apart(
    bag: str, labels: Sequence[str], special: Sequence[str], features: Sequence[str]
) -> None:
    used = [bag, *labels, *special, *features]
    for name in used:
        if used.count(name) > 1:
            raise ValueError(
                f"column {name!r} is used twice: the bag, labels, group, weight and features must "
                "be different columns"
            )
    if not labels:
        raise ValueError("label is empty, expected the name of a column")
    if not features:
        raise TableError("no column is left for the features of the elements")
