"""Batch normalisation of real rows, against torch's own on those rows alone."""

import copy

import pytest
import torch
from random_norm import random_norm
from torch import nn

from equipool.experiments.molecules.network.norm import RealRows
from equipool.training.optimizer import running_statistics

MASK = torch.tensor([True, True, False, True, False, True])
FIRST = torch.tensor([True, True, True, True, False, False])  # as in batches of molecules
each_mask = pytest.mark.parametrize("mask", [MASK, FIRST], ids=["anywhere", "first"])


def make_pair(channels=4, dtype=torch.float64):
    torch.manual_seed(0)
    norm = random_norm(channels).to(dtype)
    theirs = nn.BatchNorm1d(channels).to(dtype)
    theirs.load_state_dict(copy.deepcopy(norm.state_dict()))
    return norm, theirs


@each_mask
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_it_is_torchs_own_on_the_real_rows(training, relu, mask):
    norm, theirs = make_pair()
    norm.train(training), theirs.train(training)
    x = 3 + 2 * torch.randn(6, 4, dtype=torch.float64)
    x[~mask] = 1e6
    own, other = x.clone().requires_grad_(), x[mask].clone().requires_grad_()
    weights = torch.randn(6, 4, dtype=torch.float64)
    found, expected = norm(own, RealRows.of(mask), relu), theirs(other)
    expected = torch.relu(expected) if relu else expected
    torch.testing.assert_close(found[mask], expected)
    (found * weights)[mask].sum().backward()
    (expected * weights[mask]).sum().backward()
    torch.testing.assert_close(own.grad[mask], other.grad)
    assert not own.grad[~mask].any()
    for mine, its in zip(norm.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)
    for name, buffer in theirs.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], buffer, msg=name)


def test_gradients_by_finite_differences():
    norm, _ = make_pair()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    rows = RealRows.of(MASK)
    assert torch.autograd.gradcheck(lambda x: norm(x, rows)[MASK], (x,))


@each_mask
def test_what_padding_rows_ask_for_is_not_followed(mask):
    norm, _ = make_pair()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    norm(x, RealRows.of(mask))[~mask].sum().backward()
    assert not x.grad.any()
    assert not norm.bias.grad.any()
    assert not norm.weight.grad.any()


@each_mask
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_what_padding_rows_hold_is_not_read(odd, mask):
    norm, _ = make_pair()
    other = copy.deepcopy(norm)
    x = torch.randn(6, 4, dtype=torch.float64)
    found = []
    for layer, value in ((norm, 0.0), (other, odd)):
        rows = torch.where(mask[:, None], x, value).requires_grad_()
        y = layer(rows, RealRows.of(mask))
        y.backward(torch.where(mask[:, None], x, value))
        found.append([y, rows.grad, *(p.grad for p in layer.parameters()), layer.running_mean])
    for one, another in zip(*found, strict=True):
        assert torch.equal(one, another)


@pytest.mark.parametrize("number", [0, 1])
def test_too_few_rows_do_no_harm(number):
    norm, _ = make_pair()
    mask = torch.arange(6) < number
    before = copy.deepcopy(norm.state_dict())
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    found = norm(x, RealRows.of(mask))
    torch.testing.assert_close(found[mask], norm.bias.expand(number, -1))
    found.sum().backward()
    assert x.grad.isfinite().all()
    assert torch.equal(norm.running_mean, before["running_mean"])
    assert torch.equal(norm.running_var, before["running_var"])


def test_the_engine_finds_what_it_may_have_to_undo():
    norm, _ = make_pair()
    found = {buffer.data_ptr() for buffer in running_statistics(norm).values()}
    assert found == {norm.running_mean.data_ptr(), norm.running_var.data_ptr()}


@each_mask
def test_statistics_of_a_short_kind_are_taken_in_float32(mask):
    norm, theirs = make_pair(dtype=torch.float32)
    x = (100 + torch.randn(6, 4)).bfloat16()
    found = norm(x, RealRows.of(mask))
    assert found.dtype == torch.bfloat16
    expected = theirs(x[mask].float())
    torch.testing.assert_close(found[mask].float(), expected, rtol=0.01, atol=0.01)
    torch.testing.assert_close(norm.running_mean, theirs.running_mean)
