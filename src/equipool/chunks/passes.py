"""Reading chunks, from the first to the last, as often as needed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, TypeVar

import torch
from torch import Tensor

from equipool.checks import INTEGERS, check_like, check_range

Item = TypeVar("Item")

AHEAD = 1  # chunks that wait while one is computed and another is read


# Elements `[n, C]` on the layer's device; the set of each, `[n]`, or None if there is one set; and
# when a copy to the GPU that may still be under way has ended.
Chunk = tuple[Tensor, Tensor | None, torch.cuda.Event | None]


class Passes:
    """Chunks that are read again by each iteration, with the next one on its way while one is
    computed. The first pass shows what the chunks are like, and later ones must be like it.

    Args:
        chunks: the caller's, a re-iterable.
        num_sets: the number of sets.
        device: where the chunks are computed.
    """

    def __init__(self, chunks: Iterable[Any], num_sets: int, device: torch.device) -> None:
        self.chunks = _reiterable(chunks)
        self.num_sets = num_sets
        self.device = device
        self.like: Tensor | None = None  # [0, C] as the first chunk
        self.num_elements: int | None = None  # in all chunks, after the first pass
        self._recorded = torch.is_grad_enabled()
        self._stream = self._callers = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._callers = torch.cuda.current_stream(device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        count = 0
        for x, index, ready in read_ahead(self._chunks()):
            if ready is not None:
                stream = torch.cuda.current_stream(self.device)
                ready.wait(stream)
                for tensor in (x, index):
                    if tensor is not None:
                        # Its memory is used here, not where it is from.
                        tensor.record_stream(stream)
            count += len(x)
            yield x, index
        if self.like is None:
            raise ValueError("chunks is empty, expected one chunk or more")
        if self.num_elements is None:
            self.num_elements = count
        if count != self.num_elements:
            raise RuntimeError(
                f"chunks gave {count} elements in this pass and {self.num_elements} in the first, "
                "expected the same in every pass: every step of the search reads them again"
            )

    def _chunks(self) -> Iterator[Chunk]:
        # In the thread that reads, where gradients would always be recorded, and in every pass, of
        # which most record none: the caller's chunks must not depend on it.
        torch.set_grad_enabled(self._recorded)
        if self._callers is not None:  # what chunks compute on the GPU is done before they are used
            torch.cuda.set_stream(self._callers)
        for number, chunk in enumerate(self.chunks):
            x, index = _as_tensors(chunk, f"chunk {number}")
            self._check(x, index, f"chunk {number}")
            yield self._to_device(x, index)

    def _check(self, x: Tensor, index: Tensor | None, name: str) -> None:
        if x.requires_grad and self._recorded:
            raise ValueError(
                f"{name} requires grad, but gradients do not reach the chunks: pass the module "
                "that computes it as encoder=..., or call the layer itself"
            )
        if self.like is None:
            self.like = x.new_empty(0, x.shape[1])
        if x.shape[1] != self.like.shape[1] or x.dtype != self.like.dtype:
            raise ValueError(
                f"{name} has {x.shape[1]} channels of {x.dtype}, expected {self.like.shape[1]} of "
                f"{self.like.dtype}, as in the first chunk"
            )
        if index is not None:
            check_like(f"the index of {name}", index, x, x.shape[:1], INTEGERS)
            if len(index):
                _check_values(index, self.num_sets, name)
        elif self.num_sets != 1:
            raise ValueError(
                f"{name} has no index and num_sets is {self.num_sets}, expected (x, index) pairs"
            )

    def _to_device(self, x: Tensor, index: Tensor | None) -> Chunk:
        index = None if index is None else index.long()
        if self._stream is None or x.is_cuda:
            return x.to(self.device), None if index is None else index.to(self.device), None
        with torch.cuda.stream(self._stream):
            x = x.pin_memory().to(self.device, non_blocking=True)
            if index is not None:
                index = index.pin_memory().to(self.device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(self._stream)
        return x, index, ready


def read_ahead(items: Iterable[Item], ahead: int = AHEAD) -> Iterator[Item]:
    """The items, of which a thread reads the next ones while the caller works on one. An error of
    the items is raised here. The thread ends with the iteration, also with one that is left
    early."""
    queue: Queue[tuple[list[Item], BaseException | None]] = Queue(maxsize=ahead)
    stopped = threading.Event()

    def read() -> None:
        error = None
        try:
            for item in items:
                queue.put(([item], None))
                if stopped.is_set():
                    return
        except BaseException as found:
            error = found
        queue.put(([], error))

    thread = threading.Thread(target=read, name="equipool-chunks", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if error is not None:
                raise error
            if not item:
                return
            yield item.pop()
    finally:
        stopped.set()
        with suppress(Empty):  # make room for what the thread may be about to put
            queue.get_nowait()
        thread.join()


def _reiterable(chunks: Iterable[Any]) -> Iterable[Any]:
    if isinstance(chunks, Tensor) or hasattr(chunks, "__array__"):
        raise TypeError(
            f"chunks is a {type(chunks).__name__}, expected an iterable of chunks: wrap it, "
            "equipool.ArrayChunks(x)"
        )
    if not hasattr(chunks, "__iter__"):
        raise TypeError(f"chunks is a {type(chunks).__name__}, expected an iterable of chunks")
    if isinstance(chunks, Iterator):
        raise TypeError(
            f"chunks is a {type(chunks).__name__}, which can be read once, but every step of the "
            "search reads all chunks: pass a list, equipool.ArrayChunks or an object whose "
            "__iter__ begins again"
        )
    return chunks


def _as_tensors(chunk: Any, name: str) -> tuple[Tensor, Tensor | None]:
    pair = isinstance(chunk, (tuple, list))
    if pair and len(chunk) != 2:
        raise TypeError(f"{name} has {len(chunk)} parts, expected x or a pair (x, index)")
    x, index = chunk if pair else (chunk, None)
    x = _as_tensor(x, f"x of {name}" if pair else name)
    if not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}, expected a floating-point dtype")
    if x.dim() != 2:
        raise ValueError(f"{name} has shape {list(x.shape)}, expected [n, C]")
    return x, None if index is None else _as_tensor(index, f"the index of {name}")


def _as_tensor(array: Any, name: str) -> Tensor:
    if isinstance(array, Tensor):
        return array.clone() if array.is_inference() else array
    if hasattr(array, "__array__"):
        return torch.tensor(array)  # a copy: a file that is mapped to memory is read here
    raise TypeError(f"{name} is a {type(array).__name__}, expected a tensor or an array")


def _check_values(index: Tensor, num_sets: int, name: str) -> None:
    low, high = (int(value) for value in torch.aminmax(index))
    try:
        check_range(low, high, num_sets)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; num_sets is {num_sets}") from None
