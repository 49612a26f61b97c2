"""Sizes that graphs are recorded for."""

import pytest

from equipool.replay.capacity import LEAST_WASTE, Capacity, capacity_for
from equipool.replay.stopping import stride


@pytest.mark.parametrize("elements", [1, 200, 6656, 53_000, 10**6])
def test_capacities_hold_similar_batches(elements):
    need = Capacity(elements, max(1, elements // 26))
    capacity = capacity_for(need)
    assert capacity.holds(need, LEAST_WASTE)
    assert not capacity.holds(Capacity(capacity.elements + 1, need.sets), LEAST_WASTE)
    assert capacity.elements <= 85 or not capacity.holds(
        Capacity(capacity.elements // 4, need.sets), LEAST_WASTE
    )


@pytest.mark.parametrize("num_steps", [1, 7, 10, 60, 199, 200])
def test_strides_make_up_the_number_of_steps(num_steps):
    assert num_steps % stride(num_steps) == 0
