"""Bags in every form are read as the same."""

import numpy as np
import pandas
import pytest
import torch
from generated_bags import make_bags

from equipool.estimators import Bags, as_bags

BAGS, _ = make_bags(8, least=1)
RAGGED = [*BAGS[:3], np.zeros((0, 3)), *BAGS[3:]]


def assert_same(bags, expected):
    assert len(bags) == len(expected)
    for one, two in zip(bags, expected, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        lambda bags: np.array(bags, dtype=object),
        lambda bags: [bag.tolist() for bag in bags],  # an empty bag is []
        lambda bags: [torch.from_numpy(bag) for bag in bags],
        as_bags,
    ],
    ids=["list", "tuple", "object", "lists", "tensors", "bags"],
)
def test_every_form_of_ragged_bags(form):
    read = as_bags(form(RAGGED))
    assert_same(read, RAGGED)
    assert read.sizes.tolist() == [len(bag) for bag in RAGGED]


def test_bags_of_one_size():
    """`np.array(bags, dtype=object)` is three-dimensional then."""
    bags = [np.full((2, 3), i) for i in range(4)]
    for X in (bags, np.array(bags), np.array(bags, dtype=object), torch.tensor(np.array(bags))):
        assert_same(as_bags(X), bags)


def test_a_table_has_one_element_per_bag():
    rows = np.arange(6.0).reshape(3, 2)
    for X in (rows, rows.tolist(), pandas.DataFrame(rows), torch.from_numpy(rows)):
        assert_same(as_bags(X), rows[:, None])


def test_float32_stays():
    assert as_bags([bag.astype(np.float32) for bag in BAGS]).elements.dtype == np.float32
    assert as_bags([bag.astype(np.int8) for bag in BAGS]).elements.dtype == np.float64


def test_parts_of_bags():
    bags = as_bags(RAGGED)
    assert_same(bags[2:6], RAGGED[2:6])
    assert_same(bags[::-2], RAGGED[::-2])
    assert_same(bags[5:2], [])
    np.testing.assert_array_equal(bags[-1], RAGGED[-1])
    positions = np.array([5, 3, 0, 5])
    for some in (positions, positions.tolist()):
        assert_same(bags[some], [RAGGED[i] for i in some])
    assert_same(bags[np.arange(9) % 2 == 0], RAGGED[::2])
    assert isinstance(bags[2:6], Bags)


NAN = [np.zeros((2, 3)), np.array([[0, 1, 2], [0, np.nan, 2]])]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([np.zeros((2, 3)), np.zeros((2, 4))], r"bag 1 of X has shape \[2, 4\], expected \[n, 3\]"),
        ([np.zeros((2, 3)), [["a", "b", "c"]]], "bag 1 of X has values that are not numbers"),
        (NAN, "X contains NaN: bag 1, element 1, feature 1"),
        ([np.full((1, 2), np.inf)], "X contains infinity: bag 0, element 0, feature 0"),
        ([np.zeros((2, 0))], r"bag 0 of X has shape \[2, 0\], expected \[n, d\]"),
        ([np.array([["2024-01-31"]], "M8[s]")], "bag 0 of X has dtype datetime64"),
        (np.array([["2024-01-31"]], "M8[s]"), "X has dtype datetime64"),
        (pandas.DataFrame({"t": pandas.to_datetime(["2024-01-31"])}), "X has dtype datetime64"),
        ([[[2**53 + 1]]], "bag 0 of X has whole numbers beyond 2.53"),
        (np.array([[-(2**60)]]), "X has whole numbers beyond"),
        (np.zeros(3), "Expected 2D array"),
    ],
)
def test_other_bags_are_refused(X, message):
    with pytest.raises(ValueError, match=message):
        as_bags(X)


def test_large_sums_are_not_taken_for_infinite_values():
    bags = [np.full((2, 1), 1e308)]
    assert_same(as_bags(bags), bags)
