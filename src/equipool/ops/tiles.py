"""Tiles: runs of consecutive elements of one set, the unit of work of the kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST, LARGEST = 4, 1024
ENOUGH = 1600  # tiles that keep a large GPU busy


class Tiles(NamedTuple):
    """A partition of a batch's elements, finer than its sets.

    There are as many tiles as there can be at most, so that nothing waits for the device; those
    that are not needed are empty.
    """

    start: Tensor  # [num_tiles] first element
    end: Tensor  # [num_tiles] one past the last
    first: Tensor  # [num_rows + 1] first tile of each row


def make_tiles(index: Tensor, num_rows: int) -> Tiles:
    """Cut the elements of each row, given by `index [N]` in ascending order, into tiles."""
    num_elements, device = index.shape[0], index.device
    size = tile_size(num_elements)
    rows = torch.arange(num_rows + 1, device=device)
    ptr = torch.searchsorted(index, rows)
    first = torch.nn.functional.pad(((ptr.diff() + size - 1) // size).cumsum(0), (1, 0))
    tile = torch.arange(num_elements // size + num_rows, device=device)
    row = torch.searchsorted(first[1:], tile, right=True).clamp(max=max(num_rows - 1, 0))
    start = ptr[row] + (tile - first[row]) * size
    end = torch.minimum(start + size, ptr[row + 1])
    used = tile < first[-1]
    return Tiles(torch.where(used, start, 0), torch.where(used, end, 0), first)


def tile_size(num_elements: int) -> int:
    """Elements a tile: a power of two that gives enough tiles, within limits."""
    size = SMALLEST
    while size < LARGEST and size * ENOUGH < num_elements:
        size *= 2
    return size
