"""The layouts of a batch of sets, all read into one."""

from __future__ import annotations

from typing import SupportsIndex

import torch
from torch import Tensor

from equipool.checks import (
    INTEGERS,
    as_dim_size,
    check_agrees,
    check_elements,
    check_like,
    check_nested,
    check_offsets,
    check_range,
    refuse_with,
    values_are_at_hand,
)
from equipool.ops.segments import segment_sum
from equipool.private_torch import is_exporting
from equipool.sets import Sets, make_sets


def gather_sets(
    x: Tensor, index: Tensor | Sets | None = None, *, ptr: Tensor | None = None,
    mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
) -> tuple[Tensor, Sets]:  # fmt: skip
    """Read a batch of sets in any layout; return its elements `[N, C]` in set order, and the sets.

    | `x` | with | sets |
    |---|---|---|
    | `[N, C]` | `index [N]`, any order | `dim_size`, or the largest index + 1 |
    | `[N, C]` | `ptr [B + 1]` | `B` |
    | `[B, L, C]` | `mask [B, L]`, True = real; none: all real | `B` |
    | `[B, j, C]` jagged nested tensor | nothing | `B` |
    | `[N, C]` | nothing | 1 |
    | `[N, C]` in set order | `Sets` as `index` | theirs |

    With `[N, C]` a `mask [N]` marks the real elements; the others belong to no set and change
    nothing, so a batch can be padded to a fixed capacity. Several layers can share
    `Sets`, which are then sorted and counted once.

    Values of `index` and `ptr` are checked where that is free: on the CPU, and wherever the number
    of sets must be read from `index` anyway. On a GPU with `dim_size` or `ptr` given, nothing waits
    for the device.
    """
    check_elements(x)
    num_sets = as_dim_size(dim_size)
    if isinstance(index, Sets):
        refuse_with("sets", ptr=ptr, mask=mask)
        check_agrees(num_sets, index.num_sets, "the sets are given")
        return _from_sets(x, index)
    if x.is_nested:
        refuse_with("a nested x", index=index, ptr=ptr, mask=mask)
        check_nested(x)
        return _from_ptr(x.values(), x.offsets(), num_sets)  # type: ignore[attr-defined]
    if x.dim() == 3:
        refuse_with("a padded x of shape [B, L, C]", index=index, ptr=ptr)
        return _from_padded(x, mask, num_sets)
    if ptr is not None:
        refuse_with("ptr", index=index, mask=mask)
        return _from_ptr(x, ptr, num_sets)
    if mask is not None:
        check_like("mask", mask, x, x.shape[:1], (torch.bool,))
        if index is not None:
            check_like("index", index, x, x.shape[:1], INTEGERS)
        if values_are_at_hand(x):  # padding is dropped rather than carried along
            x, index, mask = x[mask], index if index is None else index[mask], None
    if index is not None:
        return _from_index(x, index, mask, num_sets)
    check_agrees(num_sets, 1, "x without index is one set")
    zeros = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    return _arrange(x, zeros, mask, 1, in_order=mask is None)


def gather_positions(
    x: Tensor, index: Tensor | Sets | None = None, *, ptr: Tensor | None = None,
    mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
) -> tuple[Tensor, Sets]:  # fmt: skip
    """Where the elements are in x, `[M]`, counted over its first dimensions, in set order and
    without padding; and their sets."""
    check_elements(x)
    flat = x.values() if x.is_nested else x
    # The layout's own code sorts the positions. All of them are exact in float64.
    places = torch.arange(flat.shape[:-1].numel(), dtype=torch.float64, device=x.device)
    if x.is_nested:
        ptr = x.offsets()  # type: ignore[attr-defined]
    places, sets = gather_sets(
        places.view(*flat.shape[:-1], 1), index, ptr=ptr, mask=mask, dim_size=dim_size
    )
    real = sets.index < sets.num_sets
    counts = sets.real(sets.counts)
    return places[real, 0].long(), make_sets(sets.index[real], counts, sets.num_sets, padded=False)


def _from_sets(x: Tensor, sets: Sets) -> tuple[Tensor, Sets]:
    if x.dim() != 2:
        raise ValueError(f"x has shape {list(x.shape)}, expected [N, C] with sets")
    check_like("index", sets.index, x, x.shape[:1], INTEGERS)
    if sets.padded:
        x = torch.where((sets.index < sets.num_sets).unsqueeze(-1), x, 0)
    return x, sets


def _from_index(
    x: Tensor, index: Tensor, mask: Tensor | None, dim_size: int | None
) -> tuple[Tensor, Sets]:
    check_like("index", index, x, x.shape[:1], INTEGERS)
    index, ascends = index.long(), False
    if dim_size is None and torch.compiler.is_compiling():
        raise ValueError("give dim_size (the number of sets) to compile or export the layer")
    if dim_size is None or values_are_at_hand(x):
        dim_size, ascends = _look_at(index if mask is None else index[mask], dim_size)
    return _arrange(x, index, mask, dim_size, in_order=ascends and mask is None)


def _look_at(index: Tensor, dim_size: int | None) -> tuple[int, bool]:
    """The number of sets, and whether the index ascends; waits for the device once."""
    if index.numel() == 0:
        return dim_size or 0, True
    low, high = torch.aminmax(index)
    found = torch.stack([low, high, (index[1:] >= index[:-1]).all().long()]).cpu()
    # On torch 2.8 `tolist` fails within transforms of torch.func.
    lowest, highest, ascends = (int(number) for number in found)
    check_range(lowest, highest, dim_size)
    return highest + 1 if dim_size is None else dim_size, bool(ascends)


def _from_ptr(x: Tensor, ptr: Tensor, dim_size: int | None) -> tuple[Tensor, Sets]:
    check_like("ptr", ptr, x, None, INTEGERS)
    if ptr.dim() != 1 or ptr.shape[0] == 0:
        raise ValueError(f"ptr has shape {list(ptr.shape)}, expected [B + 1] offsets")
    ptr, num_sets = ptr.long(), ptr.shape[0] - 1
    check_agrees(dim_size, num_sets, "ptr has one offset more than there are sets")
    if values_are_at_hand(x):
        check_offsets(ptr, x.shape[0])
    index = _index_of(ptr, x.shape[0])
    if values_are_at_hand(x) or torch.compiler.is_compiling():
        return x, make_sets(index, ptr.diff(), num_sets, padded=False)
    # Counted, so that the device itself rejects elements beyond the last offset.
    counts = segment_sum(torch.ones_like(index), index, num_sets)
    return x, make_sets(index, counts, num_sets, padded=False)


def _index_of(ptr: Tensor, num_elements: int) -> Tensor:
    """The set of each element, `[N]`."""
    if is_exporting():  # ONNX has no search: count the sets that have begun
        begins = segment_sum(torch.ones_like(ptr), ptr, num_elements + 1)
        return begins.cumsum(0)[:num_elements] - 1
    positions = torch.arange(num_elements, device=ptr.device)
    return torch.searchsorted(ptr[1:], positions, right=True)


def _from_padded(x: Tensor, mask: Tensor | None, dim_size: int | None) -> tuple[Tensor, Sets]:
    num_sets, length = x.shape[:2]
    check_agrees(dim_size, num_sets, "x has one row for each set")
    if mask is not None:
        check_like("mask", mask, x, x.shape[:2], (torch.bool,))
    index = torch.arange(num_sets, device=x.device).unsqueeze(-1).expand(-1, length).flatten()
    values, keep = x.flatten(0, 1), None if mask is None else mask.flatten()
    if keep is None:
        counts = torch.full((num_sets,), length, device=x.device)
        return values, make_sets(index, counts, num_sets, padded=False)
    if values_are_at_hand(x):  # padding is dropped rather than carried along
        values, index, keep = values[keep], index[keep], None
    return _arrange(values, index, keep, num_sets, in_order=keep is None)


def _arrange(
    x: Tensor, index: Tensor, mask: Tensor | None, num_sets: int, *, in_order: bool
) -> tuple[Tensor, Sets]:
    """Sort the elements by set, masked ones last and set to zero, as they may hold anything."""
    num_rows = num_sets
    if mask is not None:
        num_rows = num_sets + 1
        index = torch.where(mask, index, num_sets)
        x = torch.where(mask.unsqueeze(-1), x, 0)
    if not in_order:
        # ONNX knows no stable sort by name; its own sort is one.
        stable = not is_exporting()
        index, order = torch.sort(index, stable=True) if stable else torch.sort(index)
        x = x.index_select(0, order)
    counts = segment_sum(torch.ones_like(index), index, num_rows)
    if mask is not None:
        counts = torch.nn.functional.pad(counts[:num_sets], (0, 1))
    return x, make_sets(index, counts, num_sets, padded=mask is not None)
