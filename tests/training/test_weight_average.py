"""The average of the weights, against its formula."""

import pytest
import torch
from torch import nn

from equipool.training.optimizer import WeightAverage, average_weight

DECAY = 0.9


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
    for place, value in enumerate(average.tensors().values()):
        expected = sum(w * s[place] for w, s in zip(weights, seen, strict=True)) / sum(weights)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


def test_it_is_in_the_network_inside_the_block_alone():
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    average = WeightAverage(network)
    follow(network, average, 4)
    before, place = network.weight.detach().clone(), network.weight.data_ptr()

    def fail():
        with average.applied():
            assert torch.equal(network.weight, average.values["weight"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(network.weight, before)
    assert network.weight.data_ptr() == place
    assert not torch.equal(before, average.values["weight"])


def test_short_numbers_are_averaged_in_float32():
    network = nn.Linear(3, 2).bfloat16()
    average = WeightAverage(network)
    average.update(torch.tensor(0.5))
    assert average.values["weight"].dtype == torch.float32
    with average.applied():
        assert network.weight.dtype == torch.bfloat16


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
    before = norm.running_var.clone()
    with average.applied():
        torch.testing.assert_close(norm.running_var.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(norm.running_var, before)
    assert not any("num_batches" in name for name in average.tensors())
