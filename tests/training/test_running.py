"""Running statistics: in one place, and back where they were after a step that is skipped."""

import copy

import pytest
import torch
from torch import nn

from equipool.training.optimizer import RunningStatistics, running_statistics


def make():
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(3), nn.BatchNorm1d(3).double(), nn.LayerNorm(3), nn.BatchNorm1d(3)]
    return nn.Sequential(*norms)


def move(network):
    for number, buffer in enumerate(running_statistics(network).values()):
        buffer.add_(number + 1)


def test_the_buffers_keep_names_values_and_kinds():
    network = make()
    move(network)
    before = copy.deepcopy(network.state_dict())
    RunningStatistics(network)
    after = network.state_dict()
    assert list(after) == list(before)
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert torch.equal(after[name], value), name


def test_they_have_their_names_in_the_network():
    names = [f"{place}.running_{which}" for place in (0, 1, 3) for which in ("mean", "var")]
    assert list(running_statistics(make())) == names


def test_those_of_one_kind_lie_in_one_place():
    network = make()
    RunningStatistics(network)
    places = {
        buffer.untyped_storage().data_ptr() for buffer in running_statistics(network).values()
    }
    assert len(places) == 2  # float32 and float64


@pytest.mark.parametrize("skipped", [0.0, 1.0])
def test_they_are_put_back_where_the_step_is_skipped(skipped):
    network = make()
    move(network)
    running = RunningStatistics(network)
    before = [buffer.clone() for buffer in running_statistics(network).values()]
    kept = running.copy()
    for buffer in running_statistics(network).values():
        buffer.fill_(torch.nan if skipped else 7.0)
    running.restore(kept, torch.tensor(skipped))
    for buffer, value in zip(running_statistics(network).values(), before, strict=True):
        assert torch.equal(buffer, value if skipped else torch.full_like(value, 7.0))


def test_a_network_may_have_none():
    running = RunningStatistics(nn.Linear(2, 2))
    running.restore(running.copy(), torch.tensor(1.0))
