"""States of rows: taking, putting back and choosing some of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.solver_state import choose_rows, put_rows, with_unchanged


class Inner(NamedTuple):
    matrix: Tensor
    shared: Tensor


class State(NamedTuple):
    y: Tensor
    flag: Tensor
    inner: Inner
    path: tuple[Tensor, ...]
    count: int


def make_state(offset=0.0, num_rows=4):
    numbers = torch.arange(num_rows) + offset
    return State(
        y=numbers.unsqueeze(-1) * torch.ones(3),
        flag=numbers > offset + 1,
        inner=Inner(numbers.view(-1, 1, 1).expand(-1, 2, 2), torch.tensor(offset)),
        path=(numbers,),
        count=int(offset),
    )


def rows_of(state):
    """The numbers of the rows, read off each tensor that has them."""
    return [state.y[:, 0].tolist(), state.inner.matrix[:, 1, 0].tolist(), state.path[0].tolist()]


def test_put_rows_replaces_those_alone():
    old, rows = make_state(10.0), torch.tensor([0, 2])
    put = put_rows(old, rows, make_state(50.0, num_rows=2))
    assert rows_of(put) == [[50.0, 11.0, 51.0, 13.0]] * 3
    assert put.flag.tolist() == [False, False, False, True]
    assert (float(put.inner.shared), put.count) == (10.0, 10)
    assert rows_of(old) == [[10.0, 11.0, 12.0, 13.0]] * 3  # as it was


def test_choose_rows():
    chosen = choose_rows(
        torch.tensor([True, False, False, True]), make_state(10.0), make_state(50.0)
    )
    assert rows_of(chosen) == [[10.0, 51.0, 52.0, 13.0]] * 3
    assert chosen.flag.tolist() == [False, False, True, True]
    assert (float(chosen.inner.shared), chosen.count) == (10.0, 10)


def test_rows_that_were_not_chosen_do_not_spread():
    """A row that is not finite costs no other its value."""
    other = make_state(50.0)._replace(y=torch.full((4, 3), torch.nan))
    chosen = choose_rows(torch.tensor([True, True, False, True]), make_state(10.0), other)
    assert torch.isnan(chosen.y).any(-1).tolist() == [False, False, True, False]


def test_unchanged_numbers_are_taken_from_the_source_row_by_row():
    own = (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0]), torch.tensor([1, 2]))
    source = tuple(tensor.clone() for tensor in own)
    source[0][0, 1] = 9.0
    for tensor in source[:2]:
        tensor.requires_grad_()
    taken = with_unchanged(own, source, torch.tensor([True, False]))
    assert all(torch.equal(a, b) for a, b in zip(taken, own, strict=True))
    (taken[0].sum() + taken[1].sum()).backward()
    assert source[0].grad.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert source[1].grad.tolist() == [1.0, 0.0]
