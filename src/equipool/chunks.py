"""Elements that are read chunk by chunk, from the first to the last, as often as needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from equipool.checks import INTEGERS, as_count, check_like, check_range

Item = TypeVar("Item")

CHUNK_SIZE = 65536  # elements


class chunked:  # noqa: N801, called like a function
    """Chunks of anything that has a length and can be sliced: a tensor, a NumPy array or memory
    map, or an object of your own with `__len__` and `__getitem__`.

    Args:
        x: the elements, `[N, C]`.
        index: the set of each element, `[N]`; None if there is one set.
        size: elements per chunk.

    Example:
        >>> [len(chunk) for chunk in equipool.large.chunked(torch.randn(10, 3), size=4)]
        [4, 4, 2]
    """

    def __init__(self, x: Any, index: Any = None, size: int = CHUNK_SIZE) -> None:
        self.x, self.index = x, index
        self.size = as_count("size", size, least=1)
        if index is not None and len(index) != len(x):
            raise ValueError(f"index has {len(index)} elements, expected {len(x)}, as x has")

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.x), self.size):
            rows = slice(start, start + self.size)
            yield self.x[rows] if self.index is None else (self.x[rows], self.index[rows])


class Passes:
    """Chunks that are read again by each iteration, with the next one on its way to the device
    while one is computed: elements `[n, C]`, and the set of each, `[n]`, or None if there is one.

    Args:
        chunks: the caller's, a re-iterable.
        num_sets: the number of sets.
        device: where the chunks are computed.
    """

    def __init__(self, chunks: Iterable[Any], num_sets: int, device: torch.device) -> None:
        if hasattr(chunks, "shape") or isinstance(chunks, Iterator):
            raise TypeError(
                f"chunks is a {type(chunks).__name__}, expected a list, equipool.large.chunked(x) "
                "or an object whose __iter__ begins again: every step reads all chunks"
            )
        self.chunks = chunks
        self.num_sets = num_sets
        self.device = device
        self.num_elements: int | None = None  # in all chunks, after the first pass
        self._recorded = torch.is_grad_enabled()
        self._callers = self._copies = None
        if device.type == "cuda":
            self._callers = torch.cuda.current_stream(device)
            self._copies = torch.cuda.Stream(device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        count = 0
        for x, index in read_ahead(self._chunks()):
            for tensor in (x, index):
                if self._copies is not None and tensor is not None:
                    # Its memory is used here, not where it is from.
                    tensor.record_stream(torch.cuda.current_stream(self.device))
            count += len(x)
            yield x, index
        if self.num_elements is None:
            self.num_elements = count
        if count != self.num_elements:
            raise RuntimeError(
                f"chunks gave {count} elements in this pass and {self.num_elements} in the first, "
                "expected the same in every pass: every step of the search reads them again"
            )

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        # In the thread that reads, where gradients would always be recorded, and in every pass, of
        # which most record none: the caller's chunks must not depend on it.
        torch.set_grad_enabled(self._recorded)
        if self._callers is not None:  # what chunks compute on the GPU is done before they are used
            torch.cuda.set_stream(self._callers)
        for number, chunk in enumerate(self.chunks):
            x, index = chunk if isinstance(chunk, tuple | list) else (chunk, None)
            x, index = _as_tensor(x), None if index is None else _as_tensor(index)
            self._check(x, index, f"chunk {number}")
            with nullcontext() if self._copies is None else torch.cuda.stream(self._copies):
                x, index = x.to(self.device), None if index is None else index.to(self.device)
            yield x, None if index is None else index.long()

    def _check(self, x: Tensor, index: Tensor | None, name: str) -> None:
        if not x.is_floating_point() or x.dim() != 2:
            raise TypeError(
                f"{name} is {x.dtype} of shape {list(x.shape)}, expected floats of shape [n, C]"
            )
        if x.requires_grad and self._recorded:
            raise ValueError(
                f"{name} requires grad, but gradients do not reach the chunks: pass the module "
                "that computes it as encoder=..., or call the layer itself"
            )
        if index is None and self.num_sets != 1:
            raise ValueError(
                f"{name} has no index and dim_size is {self.num_sets}, expected (x, index) pairs"
            )
        if index is not None:
            check_like(f"the index of {name}", index, x, x.shape[:1], INTEGERS)
            if len(index):
                check_range(int(index.min()), int(index.max()), self.num_sets)


def _as_tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.clone() if array.is_inference() else array
    return torch.tensor(array)  # a copy: a file that is mapped to memory is read here


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items, of which a thread reads the next one while the caller works on one. An error of
    the items is raised here. The thread ends with the iteration, also with one that is left
    early."""
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1, thread_name_prefix="equipool-chunks") as reader:
        following = reader.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = reader.submit(next, iterator, end)
            yield item  # type: ignore[misc]
