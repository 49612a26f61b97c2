"""Adam, the average of the weights against its formula, and running statistics."""

import pytest
import torch
from torch import nn
from toy import Toy, config

from equipool.training.optimizer import (
    Optimizer,
    WeightAverage,
    average_weight,
)
from equipool.training.step import make_network

CPU = torch.device("cpu")
DECAY = 0.9


def make(kind="plain", dtype=torch.float32, **changed):
    network = make_network(Toy(kind=kind)).to(dtype)
    return network, Optimizer(network, config(weight_decay=0.1, **changed), CPU)


def fill_gradients(network, seed):
    torch.manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_divided(dtype):
    network, optimizer = make(dtype=dtype)
    other = make_network(Toy()).to(dtype)
    adam = torch.optim.AdamW(other.parameters(), weight_decay=0.1)
    for step, (rate, divisor) in enumerate([(0.01, 1.0), (0.02, 3.7), (0.03, None)]):
        fill_gradients(network, step)
        fill_gradients(other, step)
        for parameter in other.parameters():
            parameter.grad /= divisor or 1
        adam.param_groups[0]["lr"] = rate
        adam.step()
        divided = None if divisor is None else torch.tensor(divisor, dtype=dtype)
        optimizer.step(torch.tensor(rate), torch.tensor(0.0), divided)
    for one, expected in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("divisor", [None, 2.0, torch.nan, torch.inf])
def test_a_skipped_step_changes_nothing(divisor):
    network, optimizer = make()
    state = {**network.state_dict(), **optimizer.tensors()}
    before = {name: value.clone() for name, value in state.items()}
    fill_gradients(network, 0)
    next(network.parameters()).grad.fill_(torch.nan)
    given = None if divisor is None else torch.tensor(divisor)
    optimizer.step(torch.tensor(0.1), torch.tensor(1.0), given)
    for name, value in state.items():
        assert torch.equal(value, before[name]), name


def follow(network, average, num_steps):
    """Random weights, step after step; all of them."""
    seen = []
    for step in range(num_steps):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_()
        seen.append([parameter.detach().double().clone() for parameter in network.parameters()])
        average.update(torch.tensor(average_weight(DECAY, step + 1)))
    return seen


@pytest.mark.parametrize("num_steps", [1, 2, 30])
def test_it_is_the_weighted_mean_of_all_weights_after_the_start(num_steps):
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    average = WeightAverage(network)
    seen = follow(network, average, num_steps)
    weights = [DECAY ** (num_steps - 1 - k) for k in range(num_steps)]
    for place, value in enumerate(average.values.values()):
        expected = sum(w * s[place] for w, s in zip(weights, seen, strict=True)) / sum(weights)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


def test_running_statistics_are_averaged_like_the_weights():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = WeightAverage(network)
    norm, seen = network[1], []
    for step in range(5):
        network(torch.randn(8, 3))
        seen.append(norm.running_var.double().clone())
        average.update(torch.tensor(average_weight(DECAY, step + 1)))
    weights = [DECAY ** (4 - k) for k in range(5)]
    expected = sum(w * s for w, s in zip(weights, seen, strict=True)) / sum(weights)
    before, place = norm.running_var.clone(), norm.running_var.data_ptr()
    with average.applied():
        torch.testing.assert_close(norm.running_var.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(norm.running_var, before)
    assert norm.running_var.data_ptr() == place
    assert not any("num_batches" in name for name in average.values)
