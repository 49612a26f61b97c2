"""Bags of a table: rows in any order, packed bag by bag, in memory or in a temporary file."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from equipool.estimators.bags import Array, Bags
from equipool.estimators.tables.index import BagIndex
from equipool.estimators.tables.scan import ColumnScan
from equipool.estimators.tables.schema import Feature, Missing, TableSchema, Unknown
from equipool.estimators.tables.source import (
    ROWS,
    TableError,
    TableSource,
    listed,
    open_table,
)

IN_MEMORY = 2**28  # bytes; larger arrays are in a temporary file


@dataclass(frozen=True, eq=False)
class TableBags:
    """The bags of a table, in the order in which they first appear.

    Args:
        ids: of the bags, as text.
        bags: their elements, float32, in the order of the rows. In a temporary file if they are
            many.
        rows: the row of each element in the table, from 0.
        y: labels of the bags, `[B]`, or `[B, labels]` with NaN for missing ones; None if not read.
        group: the group of each bag, as text.
        weight: of each bag.
    """

    ids: list[str]
    bags: Bags
    rows: NDArray[np.int64]
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
    """Read a table with one row per element, and learn its schema. The table is read twice.

    Args:
        table: a path or a table in memory; see `open_table`.
        bag: column that names the bag of each element.
        label: column of the label, or several. It must be the same in all rows of a bag.
        features: columns that describe the elements. Default: all that are left, with a warning
            about those that are the same in all rows of each bag. A column of text becomes one
            number per category, 1 for the row's own and 0 otherwise.
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
               [1.5]], dtype=float32))
    """
    if missing not in get_args(Missing):
        raise ValueError(f"missing is {missing!r}, expected one of {get_args(Missing)}")
    source = open_table(table)
    labels = (label,) if isinstance(label, str) else tuple(label)
    special = [name for name in (group, weight) if name is not None]
    source.check_columns([bag, *labels, *special, *exclude, *categories])
    left = set(source.columns) - {bag, *labels, *special, *exclude}
    used = [name for name in source.columns if name in left] if features is None else list(features)
    source.check_columns(used)
    _check_apart(bag, labels, special, used)
    reasons = dict.fromkeys(labels, "a bag has one label")
    if weight is not None:
        reasons[weight] = "a bag has one weight"
    if group is not None:
        reasons[group] = "the bag would be in two folds"
    index = BagIndex(source.name, bag, reasons)
    scans = [ColumnScan(name, name in categories, missing) for name in used]
    schema = TableSchema(bag, labels, _scan(source, index, scans), weight)
    found = _pack(source, schema, index, "error", group)
    if features is None and (names := columns_of_bags(schema, found.bags)):
        warnings.warn(
            f"features that are the same in all rows of each bag: {listed(names)}. They describe "
            f"bags, not elements. Leave out outcomes and groups with exclude=[{names[0]!r}] "
            f"(--exclude {names[0]})",
            stacklevel=2,
        )
    return schema, found


def read_table(table: Any, schema: TableSchema, *, unknown: Unknown = "error") -> TableBags:
    """Read a table as the one that a model was trained on, without labels. The table is read twice.

    Args:
        table: a path or a table in memory; see `open_table`.
        schema: of the model.
        unknown: `"error"`, or `"ignore"` to read a category that training did not have as none.
    """
    if unknown not in get_args(Unknown):
        raise ValueError(f"unknown is {unknown!r}, expected one of {get_args(Unknown)}")
    source = open_table(table)
    source.check_columns([schema.bag, *(feature.name for feature in schema.features)])
    index = BagIndex(source.name, schema.bag, {})
    for first, columns in source.batches([schema.bag]):
        index.update(first, columns)
    return _pack(source, schema, index, unknown)


def columns_of_bags(schema: TableSchema, bags: Bags) -> list[str]:
    """Names of the features that are the same in all elements of each bag. None if every bag has
    one element.

    Example:
        >>> schema = TableSchema("bag", ("label",), (Feature("size"), Feature("age")))
        >>> columns_of_bags(schema, Bags(np.array([[1, 7], [2, 7], [3, 8]]), np.array([0, 2, 3])))
        ['age']
    """
    count, constant = len(bags.elements), np.ones(bags.num_features, bool)
    if count == len(bags):
        return []
    inside = np.ones(count, bool)  # whether the element before is of the same bag
    inside[bags.ptr[:-1]] = False
    for first in range(1, count, ROWS):
        after = bags.elements[first : first + ROWS]
        before = bags.elements[first - 1 : first - 1 + len(after)]
        same = (after == before) | (np.isnan(after) & np.isnan(before))
        constant &= same[inside[first : first + ROWS]].all(0)
        if not constant.any():
            return []
    starts = np.cumsum([0] + [len(feature.channels) for feature in schema.features])[:-1]
    per_column = np.logical_and.reduceat(constant, starts)
    return [one.name for one, same in zip(schema.features, per_column, strict=True) if same]


def _scan(source: TableSource, index: BagIndex, scans: Sequence[ColumnScan]) -> tuple[Feature, ...]:
    """Read the table for its bags and for what its columns hold. Warns about constant columns."""
    for first, columns in source.batches([index.bag, *index.names, *(one.name for one in scans)]):
        place = index.update(first, columns)
        for scan in scans:
            scan.update(columns[scan.name], place)
    found = {scan.name: scan.feature() for scan in scans}
    constant = [name for name, feature in found.items() if feature is None]
    if len(constant) == len(found):
        raise TableError(f"{source.name}: all features are constant: {listed(constant)}")
    if constant:
        warnings.warn(f"left out, as all values are equal: {listed(constant)}", stacklevel=4)
    return tuple(feature for feature in found.values() if feature is not None)


def _pack(
    source: TableSource, schema: TableSchema, index: BagIndex, unknown: Unknown,
    group: str | None = None,
) -> TableBags:  # fmt: skip
    """Put the elements in the order of their bags, in the order of the rows in each."""
    ptr = np.concatenate([[0], np.cumsum(index.counts)])
    x = _allocate((int(ptr[-1]), len(schema.channels)), np.float32)
    rows = _allocate((int(ptr[-1]),), np.int64)
    free = ptr[:-1].copy()  # where the next element of each bag goes
    names = [feature.name for feature in schema.features]
    for first, columns in source.batches([schema.bag, *names]):
        bags, place = index.bags_of(first, columns[schema.bag])
        if len(index.numbers) > len(free):
            break
        to = _places(bags, free)
        encoded = [one.encode(columns[one.name], place, unknown) for one in schema.features]
        x[to] = np.concatenate(encoded, axis=1)
        rows[to] = np.arange(first, first + len(bags))
    if (free != ptr[1:]).any() or len(index.numbers) > len(free):
        raise TableError(f"{source.name} changed while it was read, or cannot be read twice")
    ids, found = list(index.numbers), Bags(x, ptr, schema.channels)
    if not index.names:
        return TableBags(ids, found, rows)
    return TableBags(
        ids, found, rows, index.labels(schema.labels),
        None if group is None else np.array(index.values_of(group)),
        None if schema.weight is None else index.weights(schema.weight),
    )  # fmt: skip


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


def _places(bags: Array, free: Array) -> Array:
    """Where the rows of a batch go; moves `free` on."""
    order = np.argsort(bags, kind="stable")
    ordered = bags[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[starts, len(ordered)])
    to = np.empty_like(order)
    to[order] = free[ordered] + np.arange(len(ordered)) - np.repeat(starts, sizes)
    free[ordered[starts]] += sizes
    return to


def _allocate(shape: tuple[int, ...], kind: type[np.generic]) -> Array:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    if size <= IN_MEMORY:
        return np.empty(shape, kind)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk would kill the process
            else:
                file.truncate(size)
            return np.memmap(file, kind, "r+", shape=shape)
    except OSError as error:
        raise TableError(
            f"the table needs {size / 2**30:.1f} GiB in {tempfile.gettempdir()}: {error.strerror}. "
            "Choose another directory with the environment variable TMPDIR"
        ) from error
