"""What is decided about recorded solves before any is recorded."""

import copy
import pickle

import pytest
import torch

from equipool import EquilibriumAggregation
from equipool.replay import Replays
from equipool.replay.capacity import Capacity, capacity_for
from equipool.replay.stopping import stride


@pytest.mark.parametrize("waste", [1 / 64, 1 / 8, 1 / 2])
@pytest.mark.parametrize("elements", [1, 10, 200, 6656, 53_000, 10**6])
def test_capacities_hold_similar_batches(elements, waste):
    need = Capacity(elements, max(1, elements // 26))
    capacity = capacity_for(need, waste)
    assert capacity.holds(need, waste)
    assert not capacity.holds(Capacity(capacity.elements + 1, need.sets), waste)
    assert capacity.elements <= 85 or not capacity.holds(
        Capacity(capacity.elements // 4, need.sets), waste
    )


def test_copies_start_without_graphs():
    replays = Replays()
    replays.failed = True
    assert not copy.deepcopy(replays).failed
    assert not pickle.loads(pickle.dumps(replays)).failed


def test_on_a_cpu_nothing_is_recorded():
    layer = EquilibriumAggregation(16, 24)
    for _ in range(3):
        layer(torch.randn(5, 16)).sum().backward()
    assert len(layer._replays) == 0


@pytest.mark.parametrize("num_steps", [1, 7, 10, 60, 199, 200])
def test_strides_make_up_the_number_of_steps(num_steps):
    assert num_steps % stride(num_steps) == 0
