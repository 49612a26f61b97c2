"""Tables become the same bags whatever their file, the order of their rows and the batches."""

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from equipool.estimators.tables import read_table, read_training_table, values_from

COLUMNS = {"bag": "patient", "label": "response", "weight": "trust", "group": "site"}


def long_frame(seed=0, num_bags=7, missing=False):
    """A table of numbers, categories and truth values, its rows in random order."""
    draw = np.random.default_rng(seed)
    bag = np.repeat(np.arange(num_bags), draw.integers(1, 9, num_bags))
    count = len(bag)
    frame = pandas.DataFrame({
        "patient": [f"p{number}" for number in bag],
        "age": draw.normal(size=count),
        "response": np.where(bag % 2, "yes", "no"),
        "cells": draw.integers(0, 5, count),
        "stain": draw.choice(["H&E", "CD3, left", 'a "quoted" one'], count),
        "touched": draw.random(count) < 0.5,
        "trust": 1.0 + bag / 3,
        "site": bag // 2,
    })  # fmt: skip
    frame.loc[0, "cells"], frame.loc[1 % count, "cells"] = 7, 8  # never constant
    if missing:
        frame["age"] = frame["age"].mask(draw.random(count) < 0.3)
        frame["stain"] = frame["stain"].mask(draw.random(count) < 0.3)
        frame.loc[[0, count - 1], "age"] = [0.5, 1.5]
    return frame.iloc[draw.permutation(count)].reset_index(drop=True)


def write_all(frame, folder):
    """The same table in every form."""
    frame.to_csv(folder / "table.csv", index=False)
    parquet.write_table(
        pa.Table.from_pandas(frame), folder / "table.parquet", row_group_size=5, data_page_size=64
    )
    categorical = frame.assign(stain=frame["stain"].astype("category"))
    files = [folder / name for name in ("table.csv", "table.parquet")]
    return [*files, str(files[0]), frame, categorical, pa.Table.from_pandas(frame)]


def same(one, other):
    assert one.ids == other.ids
    for name in ("rows", "y", "group", "weight"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert np.array_equal(one.bags.ptr, other.bags.ptr)
    assert one.bags.names == other.bags.names
    assert one.bags.elements.tobytes() == other.bags.elements.tobytes()


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_every_file_gives_the_same_bags_to_the_bit(tmp_path, missing):
    frame = long_frame(missing=missing == "mean")
    first, *others = (
        read_training_table(table, **COLUMNS, missing=missing)
        for table in write_all(frame, tmp_path)
    )
    for schema, found in others:
        assert schema == first[0]
        same(found, first[1])


@given(st.integers(0, 2**32 - 1))
def test_bags_are_those_of_grouping_by_hand(seed):
    frame = long_frame(seed)
    schema, found = read_training_table(frame, **COLUMNS)
    categories = sorted(frame["stain"].unique())
    if len(categories) == 1 or frame["touched"].nunique() == 1:
        return  # constant columns are left out
    stains = [f"stain={name}" for name in categories]
    assert schema.channels == ("age", "cells", *stains, "touched")
    values = [(frame["stain"] == name).astype(float) for name in categories]
    x = np.stack([frame["age"], frame["cells"], *values, frame["touched"]], 1).astype(np.float64)
    assert found.ids == list(frame["patient"].unique())
    rows = [np.flatnonzero(frame["patient"] == name) for name in found.ids]
    assert np.array_equal(found.rows, np.concatenate(rows))
    for bag, own in zip(found.bags, rows, strict=True):
        assert np.array_equal(bag, x[own])
    first = frame.groupby("patient", sort=False).first()
    assert list(found.y) == list(first["response"])
    assert list(found.group) == [str(one) for one in first["site"]]
    assert np.array_equal(found.weight, first["trust"])


def test_prediction_reads_a_table_as_training_did():
    frame = long_frame(missing=True)
    schema, training = read_training_table(frame, **COLUMNS, missing="mean")
    again = read_table(
        frame.drop(columns=["response"])[frame.columns[::-1].drop("response")], schema
    )
    assert again.ids == training.ids
    assert again.bags.elements.tobytes() == training.bags.elements.tobytes()
    assert again.y is None
    # Some rows alone: the means and categories are those of the training table.
    some = frame[frame["patient"] == "p3"]
    (alone,) = read_table(some, schema).bags
    assert np.array_equal(alone, training.bags[training.ids.index("p3")])


def test_missing_numbers_become_the_mean_and_missing_categories_none():
    frame = pandas.DataFrame({"b": [0, 0, 1], "y": [0, 0, 1], "x": [1.0, None, 5.0],
                              "c": ["u", "v", None]})  # fmt: skip
    _, found = read_training_table(frame, bag="b", label="y", missing="mean")
    assert found.bags.elements.tolist() == [[1, 1, 0], [3, 0, 1], [5, 0, 0]]
    _, kept = read_training_table(frame, bag="b", label="y", missing="keep")
    assert np.isnan(kept.bags.elements).sum() == 1


def test_several_labels_are_numbers_of_which_some_are_missing():
    frame = pandas.DataFrame({"b": [0, 0, 1], "u": [1, 1, 0], "v": [None, None, 0.5],
                              "x": [1.0, 2.0, 3.0]})  # fmt: skip
    schema, found = read_training_table(frame, bag="b", label=["u", "v"])
    assert schema.labels == ("u", "v")
    assert np.array_equal(found.y, [[1, np.nan], [0, 0.5]], equal_nan=True)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [(["0", "1.0"], "i"), (["0.5", "1"], "f"), (["a", "1"], "U"), (["True", "False"], "i"),
     (["1", ""], "f"), (["5", "9007199254740993"], "i"), (["0.5", "9007199254740993"], "U"),
     (["1", "9" * 19], "U")],
)  # fmt: skip
def test_labels_have_the_narrowest_type(texts, kind):
    assert values_from(texts).dtype.kind == kind


def test_whole_numbers_beyond_2_to_the_53_stay_apart_as_labels_and_ids(tmp_path):
    frame = pandas.DataFrame({"b": 2**53 + np.arange(3), "y": 9 * 10**17 + np.arange(3),
                              "x": [1.0, 2.0, 3.0]})  # fmt: skip
    frame.to_csv(tmp_path / "bags.csv", index=False)
    for table in (frame, tmp_path / "bags.csv"):
        _, found = read_training_table(table, bag="b", label="y")
        assert found.ids == [str(2**53 + number) for number in range(3)]
        assert found.y.tolist() == [9 * 10**17 + number for number in range(3)]


def test_dates_and_unix_seconds_keep_their_seconds(tmp_path):
    """float32 has steps of 128 seconds today."""
    begin = 1_700_000_000
    frame = pandas.DataFrame({"b": [0, 0, 1], "y": [0, 0, 1], "unix": [begin, begin + 1, begin]})
    frame["when"] = pandas.to_datetime(frame["unix"], unit="s")
    frame.to_csv(tmp_path / "bags.csv", index=False)
    frame.to_parquet(tmp_path / "bags.parquet")
    for table in (frame, tmp_path / "bags.csv", tmp_path / "bags.parquet"):
        with pytest.warns(UserWarning, match="dates and times are read as seconds: 'when'"):
            schema, found = read_training_table(table, bag="b", label="y")
        expected = [[begin, begin], [begin + 1, begin + 1], [begin, begin]]
        assert found.bags.elements.tolist() == expected
        assert read_table(table, schema).bags.elements.tolist() == expected
