"""Reading the arguments of edits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipool.checks import INTEGERS, check_range
from equipool.sets import Sets
from equipool.streaming.entries import Entries

Numbers = Tensor | Sequence[int] | int


def in_given_order(
    x: Tensor, index: Tensor | Sets | None, mask: Tensor | None, ordered: Tensor, sets: Sets
) -> tuple[Tensor, Tensor]:
    """Elements and their sets in the order of a layer's arguments, without padding; `ordered` and
    `sets` are what `gather_sets` made of these."""
    if isinstance(index, Tensor):
        x, index = (x, index) if mask is None else (x[mask], index[mask])
    else:
        x, index = ordered, sets.index
        if sets.padded:
            real = index < sets.num_sets
            x, index = x[real], index[real]
    return x.detach(), index.long().cpu()


def check_new(x: Tensor, own: Tensor) -> None:
    """Check new elements against those of a stream."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}, expected a tensor")
    if x.dim() != 2 or x.shape[1] != own.shape[1]:
        raise ValueError(f"x has shape {list(x.shape)}, expected [n, {own.shape[1]}]")
    if x.dtype != own.dtype:
        raise TypeError(f"x has dtype {x.dtype}, expected {own.dtype}, that of the stream")
    if x.device != own.device:
        raise ValueError(f"x is on {x.device}, expected {own.device}, where the stream is")


def read_index(index: Numbers | None, count: int, num_sets: int) -> Tensor:
    """The set of each new element, `[count]`."""
    if index is None and num_sets != 1:
        raise ValueError(
            f"index is None, expected the set of each element: the stream has {num_sets} sets"
        )
    owners = _read_numbers("index", 0 if index is None else index)
    if owners.dim() == 0:
        owners = owners.expand(count)
    if owners.shape[0] != count:
        raise ValueError(f"index has {owners.shape[0]} numbers, expected {count}, one per row of x")
    if count:
        check_range(int(owners.min()), int(owners.max()), num_sets)
    return owners.contiguous()


def read_ids(ids: Numbers, table: Entries) -> Tensor:
    """The entries of elements, each of which must be there and be named once."""
    numbers = _read_numbers("ids", ids).reshape(-1)
    entries, known = table.find(numbers)
    if not bool(known.all()):
        raise KeyError(f"ids has {_some(numbers[~known])}, expected ids of elements in the stream")
    values, times = torch.unique(numbers, return_counts=True)
    if len(values) < len(numbers):
        raise ValueError(f"ids has {_some(values[times > 1])} more than once, expected each once")
    return entries


def _read_numbers(name: str, values: Numbers) -> Tensor:
    """Whole numbers as a tensor on the CPU."""
    numbers = torch.as_tensor(values, device="cpu")
    if numbers.numel() == 0 and not isinstance(values, Tensor):
        numbers = numbers.long()  # an empty list has torch's default dtype
    if numbers.dtype not in INTEGERS or numbers.dim() > 1:
        raise TypeError(
            f"{name} has dtype {numbers.dtype} and shape {list(numbers.shape)}, expected integers "
            "of shape [n], or a single one"
        )
    return numbers.long()


def _some(ids: Tensor) -> str:
    shown = ", ".join(str(number) for number in ids[:3].tolist())
    return shown if len(ids) <= 3 else f"{shown} and {len(ids) - 3} others"
