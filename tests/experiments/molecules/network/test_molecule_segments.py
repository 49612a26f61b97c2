"""Sums over neighbours, against adding rows one by one."""

import pytest
import torch

from equipool.experiments.molecules.network.batch import segment_sum, spread

PTR = torch.tensor([0, 2, 2, 5, 6])
INDEX = torch.tensor([0, 0, 2, 2, 2, 3, 0, 1])  # the last two belong to no segment


def test_sums_are_those_of_the_rows():
    values = torch.randn(8, 3, dtype=torch.float64)
    expected = torch.stack([values[0] + values[1], torch.zeros(3), values[2:5].sum(0), values[5]])
    torch.testing.assert_close(segment_sum(values, PTR), expected.double())


def test_rows_behind_the_last_offset_pass_no_gradient():
    values = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, dtype=torch.float64)
    (segment_sum(values, PTR) * weights).sum().backward()
    expected = torch.cat([weights[INDEX[:6]], torch.zeros(2, 3)])
    torch.testing.assert_close(values.grad, expected)


def test_short_kinds_are_summed_in_float32():
    values = torch.full((1000, 1), 1.001, dtype=torch.bfloat16)
    found = segment_sum(values, torch.tensor([0, 1000]))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(1000 * float(values[0]), rel=1e-6)


def test_spread_is_indexing():
    rows = torch.randn(4, 3)
    torch.testing.assert_close(spread(rows, INDEX, PTR), rows[INDEX])


def test_the_derivative_of_spread_is_that_of_indexing():
    rows = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(8, 3, dtype=torch.float64)
    weights[6:] = 0  # those that belong to no segment pass no gradient
    (rows[INDEX] * weights).sum().backward()
    expected, rows.grad = rows.grad, None
    weights[6:] = 1
    (spread(rows, INDEX, PTR) * weights).sum().backward()
    torch.testing.assert_close(rows.grad, expected)


def test_elements_in_any_order_with_the_order_given():
    index = torch.tensor([3, 0, 2, 0, 2, 2])
    order = torch.argsort(index, stable=True)
    rows = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(6, 3, dtype=torch.float64)
    (rows[index] * weights).sum().backward()
    expected, rows.grad = rows.grad, None
    (spread(rows, index, PTR, order) * weights).sum().backward()
    torch.testing.assert_close(rows.grad, expected)
