"""Checks of arguments, with errors in terms of the caller's arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def values_are_at_hand(x: Tensor) -> bool:
    """Whether values can be read without a device sync: in eager mode, on the CPU."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def check_elements(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}, expected a tensor")
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}, expected a floating-point dtype: call x.float()")
    if x.dim() not in (2, 3):
        raise ValueError(
            f"x has shape {list(x.shape)}, expected [N, C] elements or a padded [B, L, C] batch"
        )


def check_nested(x: Tensor) -> None:
    jagged = x.layout == torch.jagged and x.dim() == 3 and isinstance(x.shape[2], int)
    if not jagged or x.lengths() is not None:  # type: ignore[attr-defined]
        raise ValueError(
            "x is a nested tensor of another kind, expected a contiguous jagged one of shape "
            "[B, j, C]: torch.nested.nested_tensor(list_of_sets, layout=torch.jagged)"
        )


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


def as_count(name: str, value: SupportsIndex, least: int = 0, expected: str | None = None) -> int:
    """A whole number of at least `least`, of any integer type, NumPy's included."""
    if type(value) is int and value >= least:
        return value
    message = f"{name} is {value!r}, expected {expected or f'an int of {least} or more'}"
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(message) from None
    if isinstance(value, bool):
        raise TypeError(message)
    if count < least:
        raise ValueError(message)
    return count


def check_sizes(**sizes: SupportsIndex) -> None:
    """Check that all of them are positive whole numbers."""
    for name, size in sizes.items():
        as_count(name, size, least=1)


def as_sizes(name: str, sizes: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """One or more positive whole numbers."""
    given = tuple(sizes) if isinstance(sizes, Iterable) else ()
    if not given:
        raise ValueError(f"{name} is {sizes!r}, expected at least one size, each 1 or more")
    return tuple(as_count(f"a size of {name}", size, least=1) for size in given)


def as_dim_size(dim_size: SupportsIndex | None) -> int | None:
    """The number of sets, of any integer type."""
    if dim_size is None or isinstance(dim_size, torch.SymInt):
        return dim_size  # type: ignore[return-value]
    return as_count("dim_size", dim_size, expected="the number of sets as an int of 0 or more")


def check_part(name: str, part: object, kind: type, example: str) -> None:
    """Reject a class or a number in place of one of the layer's parts."""
    if isinstance(part, kind):
        return
    if isinstance(part, type):
        found = f"the class {part.__name__}"
        example = f"{part.__name__}(...)" if issubclass(part, kind) else example
    else:
        found = repr(part)
    raise TypeError(
        f"{name} is {found}, expected an instance of {kind.__name__}, such as {example}"
    )


def check_agrees(dim_size: int | None, num_sets: int, because: str) -> None:
    if dim_size is not None and dim_size != num_sets:
        raise ValueError(f"dim_size is {dim_size}, expected {num_sets}: {because}")


def check_range(low: int, high: int, num_sets: int | None) -> None:
    """Check the smallest and the largest index; any largest one may be the number of sets."""
    if low < 0:
        raise ValueError(f"index has the negative value {low}, expected values from 0")
    if num_sets is not None and high >= num_sets:
        raise ValueError(
            f"index has the value {high}, expected values below {num_sets}, the number of sets"
        )


def check_offsets(ptr: Tensor, num_elements: int) -> None:
    if bool((ptr.diff() < 0).any()):
        raise ValueError("ptr decreases, expected offsets that never do")
    if int(ptr[0]) != 0 or int(ptr[-1]) != num_elements:
        raise ValueError(
            f"ptr runs from {int(ptr[0])} to {int(ptr[-1])}, expected 0 to {num_elements}, "
            "the number of elements"
        )


def refuse_with(layout: str, **arguments: object) -> None:
    """Reject arguments that describe the sets a second time."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(f"{' and '.join(given)} given beside {layout}, expected {layout} alone")
