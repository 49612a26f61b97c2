"""Tiles: runs of consecutive elements of one set, the unit of work of the kernels."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

SMALLEST, LARGEST = 4, 1024
ENOUGH = 1600  # tiles that keep a large GPU busy
BLOCK = 128  # tiles that a program writes at once


class Tiles(NamedTuple):
    """A partition of a batch's elements, finer than its sets.

    Allocated for the worst case to avoid a sync; unused tiles are empty.
    """

    start: Tensor  # [num_tiles] first element
    end: Tensor  # [num_tiles] one past the last
    first: Tensor  # [num_rows + 1] first tile of each row


def make_tiles(index: Tensor, num_rows: int) -> Tiles:
    """Cut the elements of each row, given by `index [N]` in ascending order, into tiles.

    A row that begins at element p has its first tile at `p // size + row`. From one row to the next
    that leaves room for all its tiles, and no row has to know how many tiles those before it need.
    """
    from equipool.ops.resnet_gradient import kernels

    num_elements = index.shape[0]
    size = tile_size(num_elements)
    start, end = (index.new_empty(num_elements // size + num_rows) for _ in range(2))
    first = index.new_empty(num_rows + 1)
    kernels.cut_tiles[(num_rows + 1,)](
        index, start, end, first, num_elements, num_rows, size, BLOCK=BLOCK, num_warps=1
    )
    return Tiles(start, end, first)


def tile_size(num_elements: int) -> int:
    """Elements per tile: a power of two that gives enough tiles, within limits."""
    size = SMALLEST
    while size < LARGEST and size * ENOUGH < num_elements:
        size *= 2
    return size
