"""Tiles cover every element once, within one set, in order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipool.ops.tiles import LARGEST, SMALLEST, make_tiles, tile_size


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_tiles_partition_the_elements_of_each_set(counts):
    index = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    tiles = make_tiles(index, len(counts))
    covered = []
    for row in range(len(counts)):
        for tile in range(int(tiles.first[row]), int(tiles.first[row + 1])):
            elements = range(int(tiles.start[tile]), int(tiles.end[tile]))
            assert 1 <= len(elements) <= SMALLEST
            assert all(int(index[i]) == row for i in elements)
            covered.extend(elements)
    assert covered == list(range(len(index)))
    unused = slice(int(tiles.first[-1]), None)
    assert torch.equal(tiles.start[unused], tiles.end[unused])


@pytest.mark.parametrize(("num_elements", "size"), [(0, 4), (2048, 4), (6656, 8), (10**7, 1024)])
def test_tile_size(num_elements, size):
    assert tile_size(num_elements) == size
    assert SMALLEST <= size <= LARGEST
