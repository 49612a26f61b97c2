"""A solve of a fixed number of steps as CUDA graphs: one forward, one backward."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipool.cuda import no_garbage_collection, own_workspaces, side_stream
from equipool.replay.capacity import Capacity
from equipool.sets import Sets, make_sets


class Memory:
    """The memory that the graphs of a layer share: together they take no more than the largest.

    A graph that runs may overwrite what an earlier one kept for its backward pass. `version` counts
    the runs, so that the backward pass can notice this and run its own forward graph first.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.version = 0
        self._lock = threading.Lock()
        self._last_use = torch.cuda.Event()
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def in_use(self) -> Any:
        """One thread at a time copies a batch in, runs its graphs and copies the result out. Its
        stream waits for that of the thread before."""
        with self._lock:
            stream = torch.cuda.current_stream()
            if self._stream is not None and self._stream != stream:
                stream.wait_event(self._last_use)
            try:
                yield
            finally:
                self._stream = stream
                self._last_use.record(stream)

    def run(self, graph: torch.cuda.CUDAGraph) -> int:
        """Replay a graph, and return the version that it leaves."""
        self.version += 1
        graph.replay()
        return self.version


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, memory: Memory) -> Any:
    """Record what the block launches."""
    # Other threads, such as one that pins a loader's batches, may work meanwhile.
    capture = torch.cuda.graph(graph, memory.pool, capture_error_mode="thread_local")
    with no_garbage_collection(), capture:
        yield


class PaddedBatch:
    """A batch in memory of its own, padded to a capacity, for elements like those given."""

    def __init__(self, capacity: Capacity, like: Tensor) -> None:
        shape = (capacity.elements, like.shape[1])
        self.capacity = capacity
        self.x = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.index = torch.full(shape[:1], capacity.sets, device=like.device)
        self.counts = self.index.new_zeros(capacity.sets + 1)
        self._num_elements = 0

    def fill(self, x: Tensor, sets: Sets) -> None:
        """Copy a batch in."""
        now, before = x.shape[0], self._num_elements
        index = sets.index
        if sets.padded:  # elements that belong to no set
            index = torch.where(index == sets.num_sets, self.capacity.sets, index)
        self.x[:now].copy_(x)
        self.index[:now].copy_(index)
        # Not counted from the index: a set that is not valid has elements, but counts none.
        self.counts[: sets.num_sets].copy_(sets.counts[: sets.num_sets])
        self.counts[sets.num_sets :].zero_()
        if now < before:  # the rest of the last batch becomes padding
            self.x[now:before].zero_()
            self.index[now:before].fill_(self.capacity.sets)
        self._num_elements = now

    def sets(self) -> Sets:
        """The sets; padding has a row of its own."""
        return make_sets(self.index, self.counts, self.capacity.sets, padded=True)


class SolveGraph:
    """The solve of a batch, recorded: elements in set order and their sets -> tensors with one row
    per set. Its backward pass gives cotangents of the parameters, and of the elements if `like`
    requires a gradient; without parameters none is recorded."""

    def __init__(
        self,
        capacity: Capacity,
        solve: Callable[[Tensor, Sets], Sequence[Tensor]],
        like: Tensor,
        parameters: Sequence[Tensor] | None,
        memory: Memory,
    ) -> None:
        self.memory = memory
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.inference_mode(False), torch.set_grad_enabled(parameters is not None):
            self._batch = PaddedBatch(capacity, like)
            inputs, x = list(parameters or ()), self._batch.x
            if parameters is not None and like.requires_grad:
                inputs.insert(0, x.requires_grad_())

            def differentiate(outputs: Sequence[Tensor]) -> list[Tensor | None]:
                pairs = zip(outputs, self._by, strict=True)
                used = [(out, by) for out, by in pairs if out.requires_grad]
                outputs, by = [out for out, _ in used], [by for _, by in used]
                return list(torch.autograd.grad(outputs, inputs, by, allow_unused=True))

            with own_workspaces(), side_stream():
                outputs = solve(x, self._batch.sets())
                self._by = [torch.zeros_like(out) for out in outputs]
                if parameters is not None:
                    differentiate(outputs)
                del outputs
            with own_workspaces():
                with recording(self._forward, memory):
                    outputs = solve(x, self._batch.sets())
                self._outputs = [out.detach() for out in outputs]
                if parameters is None:
                    return
                with recording(self._backward, memory):
                    found = differentiate(outputs)
                    self._by_x = found.pop(0) if x.requires_grad else None
                    self._by_parameters = Packed(found)

    @torch.no_grad()
    def run(self, x: Tensor, sets: Sets) -> tuple[tuple[Tensor, ...], int]:
        """The outputs of a batch, `[num_rows, ...]` each, and the memory's version with what the
        backward pass reads."""
        with self.memory.in_use():
            self._batch.fill(x, sets)
            version = self.memory.run(self._forward)
            return tuple(out[: sets.num_rows].clone() for out in self._outputs), version

    @torch.no_grad()
    def run_backward(
        self, version: int, x: Tensor, sets: Sets, by_outputs: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """Cotangents of x and of the parameters for a batch that was run at this version of the
        memory."""
        with self.memory.in_use():
            if self.memory.version != version:
                self._batch.fill(x, sets)
                self.memory.run(self._forward)
            for own, by in zip(self._by, by_outputs, strict=True):
                if by is not None:
                    own[: by.shape[0]].copy_(by)
                own[0 if by is None else by.shape[0] :].zero_()
            self.memory.run(self._backward)
            by_x = None if self._by_x is None else self._by_x[: x.shape[0]].clone()
            return by_x, *self._by_parameters.copies()


class Packed:
    """Tensors side by side, in one tensor for each dtype, so that one kernel copies them all."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self._like = [None if t is None else (t.dtype, t.shape) for t in tensors]
        given = [tensor for tensor in tensors if tensor is not None]
        self._flat = {
            dtype: torch.cat([tensor.reshape(-1) for tensor in given if tensor.dtype == dtype])
            for dtype in dict.fromkeys(tensor.dtype for tensor in given)
        }

    def copies(self) -> list[Tensor | None]:
        """A copy of each tensor."""
        parts = {}
        for dtype, flat in self._flat.items():
            sizes = [like[1].numel() for like in self._like if like and like[0] == dtype]
            parts[dtype] = iter(flat.clone().split(sizes))
        return [None if like is None else next(parts[like[0]]).view(like[1]) for like in self._like]


class Replay(torch.autograd.Function):
    """A solve by its graphs: `apply(graph, sets, x, *parameters)`."""

    @staticmethod
    def forward(
        ctx: Any, graph: SolveGraph, sets: Sets, x: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        outputs, ctx.version = graph.run(x, sets)
        ctx.graph, ctx.sets = graph, sets
        # Parameters are saved so that autograd notices one that changes before the backward pass.
        ctx.save_for_backward(x, *parameters)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # to be differentiated again
            raise RuntimeError(
                "CUDA graphs cannot compute the gradient of the layer's gradient: build the layer "
                "with cuda_graphs=False and the potential with ResNetPotential(..., factored=False)"
            )
        x = ctx.saved_tensors[0]
        return None, None, *ctx.graph.run_backward(ctx.version, x, ctx.sets, by_outputs)
