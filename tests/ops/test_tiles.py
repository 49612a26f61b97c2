"""Tiles cover every element once, within one set, in order."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")
from equipool.ops.resnet_gradient.triton import make_tiles, tile_size


def runs(tiles, row):
    """First and last of each tile of a row that has elements, one after the other."""
    own = slice(int(tiles.first[row]), int(tiles.first[row + 1]))
    bounds = zip(tiles.start[own].tolist(), tiles.end[own].tolist(), strict=True)
    return [(start, end) for start, end in bounds if start != end]


def expected_runs(begin, end, size):
    return [(start, min(start + size, end)) for start in range(begin, end, size)]


def assert_partition(counts, device):
    index = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    tiles = make_tiles(index.to(device), len(counts))
    begin = 0
    for row, count in enumerate(counts):
        assert runs(tiles, row) == expected_runs(begin, begin + count, tile_size(len(index)))
        begin += count
    # Kernels run over every tile and read the row of its first element: each must have been set.
    assert int(tiles.first[0]) == 0
    assert int(tiles.first[-1]) == len(tiles.start) == len(tiles.end)
    assert bool(((tiles.start >= 0) & (tiles.start < max(len(index), 1))).all())


counts = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=counts | st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda t: t[1] * [t[0]])
)
def test_tiles_partition_the_elements_of_each_set(counts, device):
    assert_partition(counts, device)


@pytest.mark.parametrize("counts", [[7000, 0, 3], [1, 2600], [0, 0], [6400]])
def test_sets_of_many_tiles(counts, device):
    """More than a program writes at once, of more than the smallest size."""
    assert_partition(counts, device)
