"""Exact order statistics of ragged sets: which element is the k-th smallest of each set."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.ops.execution import kernels_serve
from equipool.ops.fused import fused_loops_serve
from equipool.ops.segments import segment_sum


def select(
    x: Tensor, index: Tensor, counts: Tensor, targets: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The smallest element of each set such that the elements up to it, ties included, weigh at
    least the target: `[B, R, F]`. Without a weight each counts 1, so the target `k + 1` selects
    the element of rank k, counted from 0.

    A set with a NaN gives NaN, an empty set 0. Zeros of either sign are equal. The gradient goes
    to the first element of the set that equals the output.

    Args:
        x: elements `[N, F]` in set order.
        index: the set of each element, ascending, `[N]`.
        counts: elements of each set `[B]`; a set with 0 counts as empty.
        targets: `[B, R, F]`, or with sizes of 1. Ascending in R is fastest.
        weight: `a >= 0`, `[N, F]` or `[N, 1]`.
    """
    detached, (rows, features) = x.detach(), (counts.shape[0], x.shape[1])
    targets = targets.detach().to(x.dtype if weight is not None else torch.long)
    targets = targets.expand(rows, -1, features)
    if x.shape[0] == 0:
        return x.new_zeros(targets.shape)
    if weight is not None:
        weight = weight.detach().to(x.dtype).expand_as(x)
    if kernels_serve(x):
        from equipool.ops.selection import triton

        position = triton.positions(detached, index, counts, targets, weight)
    elif fused_loops_serve(x):
        from equipool.ops.selection import numba

        position = numba.positions(detached, index, counts, targets, weight)
    else:
        position = _positions(detached, index, counts, targets, weight)
    nonempty = (counts > 0).view(-1, 1, 1)
    found = x.gather(0, position.flatten(0, 1)).view(targets.shape)
    return torch.where(nonempty, found, 0)


def _positions(
    x: Tensor, index: Tensor, counts: Tensor, targets: Tensor, weight: Tensor | None
) -> Tensor:
    """Sort by value, then stably by set."""
    values, order = x.sort(dim=0, stable=True)
    sets, by_set = index[order].sort(dim=0, stable=True)
    values, order = values.gather(0, by_set), order.gather(0, by_set)
    begins = torch.searchsorted(index, torch.arange(counts.shape[0], device=x.device))
    begins = begins.view(-1, 1, 1)
    if weight is None:
        rank = targets - 1
    else:
        reached = weight.gather(0, order).cumsum(0)
        before = torch.nn.functional.pad(reached, (0, 0, 1, 0))[begins.flatten()].unsqueeze(1)
        below = (reached.unsqueeze(1) - before[index] < targets[index]).long()
        rank = segment_sum(below, index, counts.shape[0])
    size = counts.view(-1, 1, 1)
    finite = size - segment_sum(x.isnan().long(), index, counts.shape[0]).unsqueeze(1)
    rank = torch.where(finite < size, finite, torch.minimum(rank, size - 1)).clamp(min=0)
    at = (begins + rank).clamp(max=x.shape[0] - 1)
    # The first of equal elements: the sort is stable, so it follows the last smaller one.
    same = (values[1:] == values[:-1]) | (values[1:].isnan() & values[:-1].isnan())
    new = torch.ones_like(values, dtype=torch.bool)
    new[1:] = ~same | (sets[1:] != sets[:-1])
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(-1)
    first = torch.where(new, rows, 0).cummax(0).values
    at = first.gather(0, at.flatten(0, 1))
    return order.gather(0, at).view(targets.shape)
