"""What is decided about recorded solves before any is recorded."""

import copy
import pickle

import pytest
import torch

import equipool
from equipool import EquilibriumAggregation, ResNetPotential
from equipool.replay import Replays
from equipool.replay.capacity import Capacity, capacity_for
from equipool.replay.stopping import stride
from equipool.replay.watch import Watch


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


@pytest.mark.parametrize(
    ("settings", "trained", "trains", "evaluated"),
    [
        ({}, True, True, True),
        ({"start": equipool.NormalStart(24)}, False, False, True),
        ({"differentiation": equipool.Implicit()}, False, True, True),
        ({"solver": equipool.Newton()}, False, False, False),
        ({"potential": ResNetPotential(16, 24, dropout=0.1)}, False, False, True),
    ],
    ids=["plain", "random start", "implicit", "newton", "dropout"],
)
def test_what_is_another_program_at_each_call_is_not_recorded(settings, trained, trains, evaluated):
    """In training with gradients, without them, and in evaluation without them."""
    layer = EquilibriumAggregation(16, 24, **settings)
    assert layer._is_replayable() == trained
    with torch.no_grad():
        assert layer._is_replayable() == trains
        assert layer.eval()._is_replayable() == evaluated


def test_a_potential_with_a_module_for_dropout():
    """What it is called must not matter; that it is not one of equipool's decides later."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = torch.nn.Dropout(0.1)

        def forward(self, x, y):
            return self.dropout(x - y).square().sum(-1)

    layer = EquilibriumAggregation(3, 3, potential=Network())
    assert layer._is_replayable()
    assert not Watch(layer).replayable
