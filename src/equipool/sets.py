"""One ragged batch of sets, read from any layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

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
from equipool.ops import segments
from equipool.ops.execution import is_batched
from equipool.ops.segments import segment_sum
from equipool.private_torch import is_exporting

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, eq=False)
class Sets:
    """Assigns elements to sets; a set's elements are contiguous.

    Make it by `from_index`, `from_ptr` or `from_mask` and pass it in place of `index`: several
    calls and layers can share it, and x stays in your order. It is then sorted and counted once.

    A potential's `bind` and a start's `forward` receive it with elements in set order: `spread`
    gives each element the row of its set, and `sum` adds up the elements of each set.

    There may be one row more than there are sets: the padding row, for elements that belong to no
    set. It counts as empty, so it has no energy, never moves and receives no gradient.
    """

    index: Tensor  # [N] row of each element, ascending
    counts: Tensor  # [num_rows] elements of each row; 0 for the padding row
    num_sets: int
    padded: bool  # True when a padding row follows the sets
    blocks: segments.Blocks | None
    valid: Tensor | None = None  # [num_rows, 1] whether all elements are finite; None if all are
    group: ProcessGroup | None = None  # the processes that have elements; None if this one has all
    order: Tensor | None = None  # [N] where each element is in x; None if x is in set order
    shape: tuple[int, ...] | None = None  # of x without channels; None if x is in set order

    @classmethod
    def from_index(cls, index: Tensor, dim_size: SupportsIndex | None = None) -> Sets:
        """Sets of elements in any order.

        Args:
            index: the set of each element, `[N]`.
            dim_size: the number of sets. Default: the largest index + 1.

        Example:
            >>> sets = Sets.from_index(torch.tensor([1, 0, 1]), dim_size=2)
            >>> equipool.EquilibriumAggregation(3, 8)(torch.randn(3, 3), sets).shape
            torch.Size([2, 8])
        """
        return _read(index, index.shape, index=index, dim_size=dim_size)

    @classmethod
    def from_ptr(cls, ptr: Tensor) -> Sets:
        """Sets of elements that are contiguous, from where each begins and ends, `[B + 1]`."""
        return _read(ptr, (int(ptr[-1]),), ptr=ptr)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Sets:
        """Sets of a padded batch, `[B, L]`, True for real elements."""
        return _read(mask, mask.shape, mask=mask)

    @property
    def num_rows(self) -> int:
        return self.num_sets + self.padded

    @property
    def num_elements(self) -> int:
        return self.index.shape[0]

    @property
    def ptr(self) -> Tensor:
        """Offsets `[num_rows + 1]` of the rows' elements."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0))

    def spread(self, rows: Tensor) -> Tensor:
        """Give each element the row of its set: `[num_rows, ...] -> [N, ...]`."""
        if self.blocks is None:
            return segments.segment_spread(rows, self.index)
        return segments.block_spread(rows, self.blocks)

    def sum(self, values: Tensor) -> Tensor:
        """Sum the elements of each set: `[N, ...] -> [num_rows, ...]`."""
        if self.blocks is None:
            return segments.segment_sum(values, self.index, self.num_rows)
        return segments.block_sum(values, self.blocks, self.num_rows)

    def real(self, rows: Tensor) -> Tensor:
        """Drop the padding row: `[num_rows, ...] -> [num_sets, ...]`."""
        return rows[: self.num_sets] if self.padded else rows

    def mark(self, rows: Tensor) -> Tensor:
        """Fill the rows `[num_rows, ...]` of invalid sets with NaN, which also blocks their
        gradient."""
        if self.valid is None:
            return rows
        return torch.where(self.valid.view(-1, *(1 for _ in rows.shape[1:])), rows, torch.nan)

    def restrict(self, rows: Tensor) -> tuple[Tensor, Sets]:
        """Some rows alone, given by ascending numbers: the numbers of their elements, and the sets
        of those."""
        number = self.index.new_full((self.num_rows,), -1)
        number[rows] = torch.arange(rows.shape[0], device=rows.device, dtype=number.dtype)
        of_elements = number[self.index]
        (elements,) = (of_elements >= 0).nonzero(as_tuple=True)
        index, counts = of_elements[elements], self.counts[rows]
        return elements, make_sets(index, counts, rows.shape[0], padded=False)


def make_sets(index: Tensor, counts: Tensor, num_sets: int, *, padded: bool) -> Sets:
    """Sets from each element's row, ascending, and the rows' counts."""
    index = index.contiguous()  # kernels read its memory; it may be an expanded number
    wanted = segments.blocks_are_wanted(index.shape[0])
    blocks = segments.make_blocks(index, counts.shape[0]) if wanted else None
    return Sets(index, counts, num_sets, padded, blocks)


def empty_invalid_sets(x: Tensor, sets: Sets) -> tuple[Tensor, Sets]:
    """Empty the sets that have a non-finite element; they are not `valid`.

    Left as they are, they would reach the other sets in the backward pass even if the loss leaves
    them out, as zero times NaN is NaN. An empty set has no energy and passes no gradient. An
    exported program, which has no backward pass, leaves all as they were.
    """
    if is_exporting():
        return x, sets
    sizes = torch.linalg.vector_norm(x.detach(), torch.inf, dim=-1)
    valid = sets.sum(0 * sizes) == 0  # 0 times a non-finite number is NaN
    if sets.valid is not None:
        valid = valid & sets.valid.squeeze(-1)
    if values_are_at_hand(x) and not is_batched(x) and bool(valid.all()):
        return x, sets
    # The elements stay, as zeros, and count for nothing: other sets' rounding stays the same.
    x = torch.where((sizes < torch.inf).unsqueeze(-1), x, 0)
    counts = torch.where(valid, sets.counts, 0)
    return x, replace(sets, counts=counts, valid=valid.unsqueeze(-1))


def _read(like: Tensor, shape: tuple[int, ...], **layout: Any) -> Sets:
    """The sets of elements `[*shape, C]` in this layout, and where these are."""
    # The layout's own code sorts the places. All of them are exact in float64.
    places = torch.arange(math.prod(shape), dtype=torch.float64, device=like.device)
    places, sets = gather_sets(places.view(*shape, 1), **layout)
    return replace(sets, order=places.squeeze(-1).long(), shape=tuple(shape))


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
    | as the sets were made | `Sets` as `index` | theirs |

    With `[N, C]` a `mask [N]` marks the real elements; the others belong to no set and change
    nothing, so a batch can be padded to a fixed capacity.

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
    if sets.order is not None:
        if x.shape[:-1] != sets.shape:
            expected = ", ".join(map(str, (*(sets.shape or ()), "C")))
            raise ValueError(
                f"x has shape {list(x.shape)}, expected [{expected}], that of the sets"
            )
        x = x.flatten(0, -2).index_select(0, sets.order)
        sets = replace(sets, order=None, shape=None)
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
