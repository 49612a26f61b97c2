"""One ragged batch of sets, read from any layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor

from equipool.checks import as_count
from equipool.ops import segments
from equipool.ops.execution import is_batched, is_exporting, values_are_at_hand
from equipool.ops.segments import segment_sum

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Sets:
    """Assigns elements to sets; a set's elements are contiguous.

    Make it by `from_index`, `from_ptr` or `from_mask` and pass it in place of `index`: several
    calls and layers can share it, and x stays in your order. It is then sorted and counted once.

    A potential's `bind` and a start's `forward` receive it with elements in set order: `spread`
    gives each element the row of its set, and `sum` adds up the elements of each set, times their
    weights. `counts` says whether a set has elements, `totals` how many, or how much they weigh.

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
    weight: Tensor | None = None  # [N] of each element, positive; None if all are 1
    total_weight: Tensor | None = None  # [num_rows] its sum over each row, where counts are

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
        return cls._of(index, index.shape, index=index, dim_size=dim_size)

    @classmethod
    def from_ptr(cls, ptr: Tensor) -> Sets:
        """Sets of elements that are contiguous, from where each begins and ends, `[B + 1]`."""
        return cls._of(ptr, torch.Size([int(ptr[-1])]), ptr=ptr)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Sets:
        """Sets of a padded batch, `[B, L]`, True for real elements."""
        return cls._of(mask, mask.shape, mask=mask)

    @classmethod
    def _of(cls, like: Tensor, shape: torch.Size, **layout: Any) -> Sets:
        order, sets = _places(like, shape, **layout)
        return replace(sets, order=order, shape=shape)

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

    @property
    def totals(self) -> Tensor:
        """Weight of each row, `[num_rows]`: the number of its elements if they have no weights."""
        return self.counts if self.total_weight is None else self.total_weight

    def spread(self, rows: Tensor) -> Tensor:
        """Give each element the row of its set: `[num_rows, ...] -> [N, ...]`."""
        if self.blocks is None:
            return segments.segment_spread(rows, self.index)
        return segments.block_spread(rows, self.blocks)

    def sum(self, values: Tensor) -> Tensor:
        """Sum the elements of each set, times their weights: `[N, ...] -> [num_rows, ...]`."""
        if self.weight is not None:
            dtype = values.dtype if values.is_floating_point() else self.weight.dtype
            values = values * self.weight.to(dtype).view(-1, *(1 for _ in values.shape[1:]))
        if self.blocks is None:
            return segments.segment_sum(values, self.index, self.num_rows)
        return segments.block_sum(values, self.blocks, self.num_rows)

    def real(self, rows: Tensor) -> Tensor:
        """Drop the padding row: `[num_rows, ...] -> [num_sets, ...]`."""
        return rows[: self.num_sets] if self.padded else rows

    def padded_rows(self, rows: Tensor) -> Tensor:
        """Add zeros for the padding row: `[num_sets, K] -> [num_rows, K]`."""
        return torch.nn.functional.pad(rows, (0, 0, 0, 1)) if self.padded else rows

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
        sets = make_sets(index, counts, rows.shape[0], padded=False)
        if self.weight is None:
            return elements, sets
        return elements, replace(sets, weight=self.weight[elements], total_weight=self.totals[rows])

    def weighted(self, weight: Tensor | None) -> Sets:
        """The same with weights of the elements, `[N]`."""
        if weight is None:
            return self
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        sets = replace(self, weight=weight)
        return sets.counted(self.counts, sets.sum(torch.ones_like(weight)))

    def counted(self, counts: Tensor, totals: Tensor) -> Sets:
        """The same with other counts; totals matter with weights, and are 0 where counts are."""
        if self.weight is None:
            return replace(self, counts=counts)
        return replace(self, counts=counts, total_weight=torch.where(counts > 0, totals, 0))


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
    return x, replace(sets.counted(counts, sets.totals), valid=valid.unsqueeze(-1))


def gather_sets(
    x: Tensor, index: Tensor | Sets | None = None, *, ptr: Tensor | None = None,
    mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None,
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

    `weight`, in the shape of x without channels, gives elements a weight: 2 is the same as two
    copies. An element of weight 0 is absent, whatever it holds, and its weight receives no
    gradient; it still counts for the largest index. With a nested x the weights are nested too, or
    those of its values, `[N]`. On a GPU, where values are not read, a negative or non-finite weight
    makes its set invalid.

    Values of `index` and `ptr` are checked where that is free: on the CPU, and wherever the number
    of sets must be read from `index` anyway. On a GPU with `dim_size` or `ptr` given, nothing waits
    for the device.
    """
    _check_elements(x)
    if weight is None:
        return _read(x, index, ptr, mask, dim_size)
    if isinstance(index, Sets):
        _refuse_with("sets that have weights", weight=weight if index.weight is not None else None)
    if x.is_nested:
        values, index = _read(x, index, ptr, mask, dim_size)
        x, weight = values, _values_like(weight, x)
        ptr = mask = None
    check_like("weight", weight, x, x.shape[:-1], FLOATS)
    both, sets = _read(torch.cat([x, weight.unsqueeze(-1)], -1), index, ptr, mask, dim_size)
    both, found, sets = _leave_out(both, sets)
    elements = both[:, :-1].to(x.dtype)
    return (
        elements if x.requires_grad else elements.detach(),
        sets.weighted(found if weight.requires_grad else found.detach()),
    )


def _values_like(weight: Tensor, x: Tensor) -> Tensor:
    """The weights `[N]` of a nested x, nested themselves or not."""
    if not (isinstance(weight, Tensor) and weight.is_nested):
        return weight
    offsets, expected = weight.offsets(), x.offsets()  # type: ignore[attr-defined]
    if weight.dim() != 2 or (values_are_at_hand(x) and not torch.equal(offsets, expected)):
        raise ValueError("weight is nested unlike x, expected [B, j] with the sizes of the sets")
    return weight.values()


def _leave_out(both: Tensor, sets: Sets) -> tuple[Tensor, Tensor, Sets]:
    """Leave out elements whose weight, the last channel, is 0. Returns the weights as well."""
    weight, index = both[:, -1], sets.index
    usable = (weight >= 0) & (weight < torch.inf)
    present = weight != 0
    if values_are_at_hand(both) and not is_batched(both):
        if not bool(usable.all()):
            raise ValueError(
                f"weight has the value {float(weight[~usable][0])}, expected finite values of 0 or "
                "more"
            )
        if not bool(present.all()):
            both, index = both[present], index[present]
            counts = segment_sum(torch.ones_like(index), index, sets.num_rows)
            sets = make_sets(index, counts, sets.num_sets, padded=sets.padded)
        return both, both[:, -1], sets
    # Absent elements become padding.
    both = torch.where(usable.unsqueeze(-1), both, torch.nan)
    present = present & (index < sets.num_sets)
    both, sets = _arrange(both, index, present, sets.num_sets, in_order=False)
    real = (sets.index < sets.num_sets) & both[:, -1].isfinite()
    return both, torch.where(real, both[:, -1], 1), sets


def _read(
    x: Tensor, index: Tensor | Sets | None, ptr: Tensor | None, mask: Tensor | None,
    dim_size: SupportsIndex | None,
) -> tuple[Tensor, Sets]:  # fmt: skip
    """`gather_sets` without weights."""
    num_sets: int | None = dim_size  # type: ignore[assignment]
    if dim_size is not None and not isinstance(dim_size, torch.SymInt):
        expected = "the number of sets as an int of 0 or more"
        num_sets = as_count("dim_size", dim_size, expected=expected)
    if isinstance(index, Sets):
        _refuse_with("sets", ptr=ptr, mask=mask)
        _check_agrees(num_sets, index.num_sets, "the sets are given")
        return _from_sets(x, index)
    if x.is_nested:
        _refuse_with("a nested x", index=index, ptr=ptr, mask=mask)
        jagged = x.layout == torch.jagged and x.dim() == 3 and isinstance(x.shape[2], int)
        if not jagged or x.lengths() is not None:  # type: ignore[attr-defined]
            raise ValueError(
                "x is a nested tensor of another kind, expected a contiguous jagged one of shape "
                "[B, j, C]: torch.nested.nested_tensor(list_of_sets, layout=torch.jagged)"
            )
        return _from_ptr(x.values(), x.offsets(), num_sets)  # type: ignore[attr-defined]
    if x.dim() == 3:
        _refuse_with("a padded x of shape [B, L, C]", index=index, ptr=ptr)
        _check_agrees(num_sets, x.shape[0], "x has one row for each set")
    elif ptr is not None:
        _refuse_with("ptr", index=index, mask=mask)
        return _from_ptr(x, ptr, num_sets)
    elif index is None:
        _check_agrees(num_sets, 1, "x without index is one set")
    if mask is not None:
        check_like("mask", mask, x, x.shape[:-1], (torch.bool,))
    return _from_index(x, index, mask, num_sets)


def gather_positions(
    x: Tensor, index: Tensor | Sets | None = None, *, ptr: Tensor | None = None,
    mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Sets]:  # fmt: skip
    """Where the elements are in x, `[M]`, counted over its first dimensions, in set order and
    without padding; and their sets."""
    _check_elements(x)
    if x.is_nested:
        weight = None if weight is None else _values_like(weight, x)
        x, ptr = x.values(), x.offsets()  # type: ignore[attr-defined]
    layout = {"index": index, "ptr": ptr, "mask": mask, "dim_size": dim_size, "weight": weight}
    places, sets = _places(x, x.shape[:-1], **layout)
    return without_padding(places, sets)


def without_padding(x: Tensor, sets: Sets) -> tuple[Tensor, Sets]:
    """The elements that belong to a set, and the sets. Waits for the device."""
    if not sets.padded:
        return x, sets
    real = sets.index < sets.num_sets
    weight = None if sets.weight is None else sets.weight[real]
    counts = sets.real(sets.counts)
    found = make_sets(sets.index[real], counts, sets.num_sets, padded=False)
    return x[real], found.weighted(weight)


def _places(like: Tensor, shape: torch.Size, **layout: Any) -> tuple[Tensor, Sets]:
    """Where each element is, counted over `shape`, in set order; and the sets."""
    # The layout's own code sorts the places. All of them are exact in float64.
    places = torch.arange(shape.numel(), dtype=torch.float64, device=like.device)
    places, sets = gather_sets(places.view(*shape, 1), **layout)
    return places.squeeze(-1).long(), sets


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
    x: Tensor, index: Tensor | None, mask: Tensor | None, num_sets: int | None
) -> tuple[Tensor, Sets]:
    """Without an index, a padded batch or one set."""
    in_order = index is None
    if index is None:
        shape = x.shape[:-1] if x.dim() == 3 else (1, x.shape[0])
        num_sets = shape[0]
        index = torch.arange(num_sets, device=x.device).unsqueeze(-1).expand(shape).flatten()
        x, mask = x.flatten(0, -2), None if mask is None else mask.flatten()
    check_like("index", index, x, x.shape[:1], INTEGERS)
    index = index.long()
    if mask is not None and values_are_at_hand(x):  # padding is dropped, not carried along
        x, index, mask = x[mask], index[mask], None
    if num_sets is None and torch.compiler.is_compiling():
        raise ValueError("give dim_size (the number of sets) to compile or export the layer")
    if num_sets is None or (not in_order and values_are_at_hand(x)):
        num_sets, in_order = _look_at(index if mask is None else index[mask], num_sets)
    return _arrange(x, index, mask, num_sets, in_order=in_order and mask is None)


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
    _check_agrees(dim_size, num_sets, "ptr has one offset more than there are sets")
    if values_are_at_hand(x):
        if bool((ptr.diff() < 0).any()):
            raise ValueError("ptr decreases, expected offsets that never do")
        if int(ptr[0]) != 0 or int(ptr[-1]) != x.shape[0]:
            raise ValueError(
                f"ptr runs from {int(ptr[0])} to {int(ptr[-1])}, expected 0 to {x.shape[0]}, "
                "the number of elements"
            )
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


def check_like(
    name: str, tensor: Tensor, x: Tensor, shape: Sequence[int] | None,
    dtypes: tuple[torch.dtype, ...],
) -> None:  # fmt: skip
    """Check the dtype, shape and device of an argument against the elements."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, expected a tensor")
    if tensor.dtype not in dtypes:
        kinds = {INTEGERS: "an integer dtype", FLOATS: "a floating-point dtype"}
        expected = kinds.get(dtypes, str(dtypes[0]))
        raise TypeError(f"{name} has dtype {tensor.dtype}, expected {expected}")
    if shape is not None and tuple(tensor.shape) != tuple(shape):
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, expected {list(shape)} "
            f"for x of shape {list(x.shape)}"
        )
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device} and x on {x.device}, expected one device")


def check_range(low: int, high: int, num_sets: int | None) -> None:
    """Check the smallest and the largest index; any largest one may be the number of sets."""
    if low < 0:
        raise ValueError(f"index has the negative value {low}, expected values from 0")
    if num_sets is not None and high >= num_sets:
        raise ValueError(
            f"index has the value {high}, expected values below {num_sets}, the number of sets"
        )


def _check_elements(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}, expected a tensor")
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}, expected a floating-point dtype: call x.float()")
    if x.dim() not in (2, 3):
        raise ValueError(
            f"x has shape {list(x.shape)}, expected [N, C] elements or a padded [B, L, C] batch"
        )


def _check_agrees(dim_size: int | None, num_sets: int, because: str) -> None:
    if dim_size is not None and dim_size != num_sets:
        raise ValueError(f"dim_size is {dim_size}, expected {num_sets}: {because}")


def _refuse_with(layout: str, **arguments: object) -> None:
    """Reject arguments that describe the sets a second time."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(f"{' and '.join(given)} given beside {layout}, expected {layout} alone")
