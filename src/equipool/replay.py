"""Solves recorded as CUDA graphs inside the layer, so that a plain call launches one or two.

A solve of fifteen steps is hundreds of small kernels, and launching them from Python takes longer
than running them. The layer therefore records the solve, and the backward pass through it, for a
*capacity*: a number of elements and of sets that batches are padded to. Batches of changing sizes
share a few capacities.

All graphs of a layer share one memory pool, so they take no more memory than the largest. A graph
that runs may overwrite what an earlier one kept for its backward pass; the backward pass notices
this and replays its own forward first.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipool.capture import no_garbage_collection, own_workspaces
from equipool.ops.fixed_shapes import shapes_are_fixed
from equipool.ops.segments import segment_sum
from equipool.sets import Sets, make_sets
from equipool.watch import Watch

MOST_GRAPHS = 16

# Padding that a batch may get, as a part of its size. It starts at the first and doubles whenever
# there are too many graphs; where the last does not suffice, sizes vary too much for graphs.
LEAST_WASTE, MOST_WASTE = 1 / 64, 1 / 2
SMALL = 64  # elements that may always be padding: a small batch costs the same with them
LARGE = 32_768  # elements from which work, not launching, takes the time
WASTE_IF_LARGE = 1 / 16

SECOND_GRADIENT = (
    "CUDA graphs cannot compute the gradient of the layer's gradient: build the layer with "
    "cuda_graphs=False and the potential with ResNetPotential(..., factored=False)"
)

Solve = Callable[[Any, Tensor, Sets], tuple[Tensor, ...]]
"""A layer, elements in set order and their sets -> tensors with one row per set."""


class Capacity(NamedTuple):
    """How many elements and sets a graph has room for."""

    elements: int
    sets: int

    def holds(self, need: Capacity, waste: float) -> bool:
        """Whether a batch fits, with no more padding than `waste` allows."""
        room = zip(self, need, strict=True)
        return all(n <= own <= n + _padding(n, waste) for own, n in room)


def capacity_for(need: Capacity, waste: float) -> Capacity:
    """The capacity to record for a batch: rounded up, so that batches of similar size share it.

    Example:
        >>> capacity_for(Capacity(6600, 250), waste=1 / 64)
        Capacity(elements=6656, sets=256)
    """
    return Capacity(*(_round_up(n, _padding(n, waste)) for n in need))


def _padding(number: int, waste: float) -> int:
    if number > LARGE:
        waste = min(waste, WASTE_IF_LARGE)
    return max(SMALL, int(waste * number))


def _round_up(number: int, step: int) -> int:
    step = 1 << (step.bit_length() - 1)
    return -(-number // step) * step


class Replays:
    """The graphs of one layer. Copies of the layer start without any."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[tuple[Hashable, Capacity], Graph] = OrderedDict()
        self._seen: set[Hashable] = set()
        self._watch: Watch | None = None
        self._memory: Memory | None = None
        self._waste = LEAST_WASTE
        self._lock = threading.RLock()
        self.failed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Replays:
        return Replays()

    def __reduce__(self) -> tuple[type[Replays], tuple[()]]:
        return Replays, ()

    def __len__(self) -> int:
        return len(self._graphs)

    def solve(
        self, layer: nn.Module, solve: Solve, x: Tensor, sets: Sets, variant: Hashable
    ) -> tuple[Tensor, ...] | None:
        """Replay the solve of a batch. None where it has to be launched kernel by kernel: on a
        first call, and after recording has failed.

        Args:
            layer: whose graphs these are.
            solve: is recorded.
            x: elements in set order, `[N, C]`.
            sets: their sets.
            variant: distinguishes the functions that `solve` may be.
        """
        if self.failed or sets.num_elements == 0 or sets.num_sets == 0:
            return None
        watch = self._current_watch(layer)
        if not watch.replayable:
            return None
        recorded = torch.is_grad_enabled() and (x.requires_grad or bool(watch.trainable))
        kind = (variant, recorded, recorded and x.requires_grad, x.device, x.dtype, *_modes())
        need = Capacity(sets.num_elements, sets.num_sets)
        parameters = watch.trainable if recorded else None
        with self._lock:
            graph = self._find(kind, need)
            if graph is None and self._is_worth_recording(kind):
                graph = self._record(layer, solve, kind, need, x, parameters)
        if graph is None:
            return None
        index = sets.index
        if sets.padded:
            index = torch.where(index == sets.num_sets, graph.capacity.sets, index)
        if not recorded:
            return graph.run(x, index, sets.num_sets)
        return _Replay.apply(graph, sets.num_sets, x, index, *watch.trainable)

    def _current_watch(self, layer: nn.Module) -> Watch:
        if self._watch is None or not self._watch.holds():
            self._clear()
            self._watch = Watch(layer)
        return self._watch

    def _clear(self) -> None:
        self._graphs.clear()
        self._seen.clear()
        self._memory = None

    def _find(self, kind: Hashable, need: Capacity) -> Graph | None:
        fitting = [
            key for key in self._graphs if key[0] == kind and key[1].holds(need, self._waste)
        ]
        if not fitting:
            return None
        key = min(fitting, key=lambda key: key[1])
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _is_worth_recording(self, kind: Hashable) -> bool:
        """Not on a first call, which may be the only one, and which builds what is built once."""
        if kind not in self._seen:
            self._seen.add(kind)
            return False
        return len(self._graphs) < MOST_GRAPHS or self._make_room()

    def _make_room(self) -> bool:
        """Begin anew with graphs that each serve more sizes."""
        self._waste *= 2
        if self._waste > MOST_WASTE:
            self._give_up("the sizes of the batches vary too much for CUDA graphs")
            return False
        self._graphs.clear()
        self._memory = None
        return True

    def _record(
        self,
        layer: nn.Module,
        solve: Solve,
        kind: Hashable,
        need: Capacity,
        x: Tensor,
        parameters: Sequence[Tensor] | None,
    ) -> Graph | None:
        capacity = capacity_for(need, self._waste)
        if self._memory is None:
            self._memory = Memory(self._lock)
        alias, aliases = _alias(layer)
        inputs = None if parameters is None else [aliases[id(p)] for p in parameters]
        try:
            graph = Graph(capacity, partial(solve, alias), x, inputs, self._memory)
        except RuntimeError as error:
            self._give_up(f"it could not be recorded as a CUDA graph ({error})")
            return None
        self._graphs[kind, capacity] = graph
        return graph

    def _give_up(self, reason: str) -> None:
        self._clear()
        self.failed = True
        warnings.warn(
            f"equipool launches the solve kernel by kernel, which is slower: {reason}. "
            "Pass cuda_graphs=False to the layer to silence this",
            stacklevel=6,
        )


def _alias(layer: nn.Module) -> tuple[nn.Module, dict[int, Tensor]]:
    """The layer once more with other tensors in the same memory, and these by the identity of the
    layer's own. A backward pass through the layer's own would wait for the stream that they were
    last used on, which a recording must not."""
    aliases: dict[int, Any] = {}
    for tensor in layer.parameters():
        aliases[id(tensor)] = nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    for tensor in layer.buffers():
        aliases[id(tensor)] = tensor.detach()
    return copy.deepcopy(layer, dict(aliases)), aliases


class Memory:
    """The memory that a layer's graphs share, and a count of the writes to it."""

    def __init__(self, lock: Any) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = lock  # one thread at a time: a batch is copied in, solved, and copied out
        self.version = 0
        self._last_use = torch.cuda.Event()
        self._stream: torch.cuda.Stream | None = None

    def enter(self) -> None:
        """Let the current stream wait for what another one does here."""
        stream = torch.cuda.current_stream()
        if self._stream is not None and self._stream != stream:
            stream.wait_event(self._last_use)
        self._stream = stream

    def leave(self) -> None:
        """What the current stream was given to do here has been given."""
        self._last_use.record()


class Graph:
    """The solve of a batch of at most a given capacity, recorded.

    Args:
        capacity: elements and sets that there is room for.
        solve: is recorded.
        like: elements, for their size, dtype and whether they need a gradient.
        parameters: by which the outputs are differentiated; None to record no backward pass.
        memory: is shared with the layer's other graphs.
    """

    def __init__(
        self,
        capacity: Capacity,
        solve: Callable[[Tensor, Sets], tuple[Tensor, ...]],
        like: Tensor,
        parameters: Sequence[Tensor] | None,
        memory: Memory,
    ) -> None:
        self.capacity, self.memory = capacity, memory
        self._num_elements = 0  # of the last batch
        with torch.inference_mode(False), torch.set_grad_enabled(parameters is not None):
            shape, device = (capacity.elements, like.shape[1]), like.device
            self._x = torch.zeros(shape, dtype=like.dtype, device=device)
            self._index = torch.full(shape[:1], capacity.sets, device=device)
            self._inputs = list(parameters or ())
            self._by_x: Tensor | None = None
            if parameters is not None and like.requires_grad:
                self._inputs.insert(0, self._x.requires_grad_())
            self._record(solve)

    def _record(self, solve: Callable[[Tensor, Sets], tuple[Tensor, ...]]) -> None:
        recorded = torch.is_grad_enabled()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()

        def run() -> tuple[Tensor, ...]:
            return solve(self._x, _padded_sets(self._index, self.capacity.sets))

        with own_workspaces():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                outputs = run()
                self._by = [torch.zeros_like(out) for out in outputs]
                if recorded:
                    self._differentiate(outputs)
                del outputs
            torch.cuda.current_stream().wait_stream(stream)
        with own_workspaces(), no_garbage_collection():
            with self._capturing(self._forward):
                outputs = run()
            self._outputs = [out.detach() for out in outputs]
            if recorded:
                with self._capturing(self._backward):
                    found = list(self._differentiate(outputs))
                    if self._x.requires_grad:
                        self._by_x = found.pop(0)
                    self._by_parameters = Packed(found)
        self._inputs.clear()

    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Any:
        # Other threads, such as one that pins a loader's batches, may go on meanwhile.
        return torch.cuda.graph(graph, self.memory.pool, capture_error_mode="thread_local")

    def _differentiate(self, outputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        pairs = zip(outputs, self._by, strict=True)
        used = [(out, by) for out, by in pairs if out.requires_grad]
        return torch.autograd.grad(
            [out for out, _ in used], self._inputs, [by for _, by in used], allow_unused=True
        )

    @torch.no_grad()
    def run(self, x: Tensor, index: Tensor, num_sets: int) -> tuple[Tensor, ...]:
        """The outputs of a batch."""
        with self.memory.lock:
            self.memory.enter()
            self._replay_forward(x, index)
            outputs = tuple(out[:num_sets].clone() for out in self._outputs)
            self.memory.leave()
        return outputs

    def _replay_forward(self, x: Tensor, index: Tensor) -> None:
        now, before = x.shape[0], self._num_elements
        self._x[:now].copy_(x)
        self._index[:now].copy_(index)
        if now < before:  # what is left of the last batch becomes padding
            self._x[now:before].zero_()
            self._index[now:before].fill_(self.capacity.sets)
        self._num_elements = now
        self._forward.replay()
        self.memory.version += 1

    @torch.no_grad()
    def run_backward(
        self, version: int, x: Tensor, index: Tensor, by_outputs: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """The derivatives by x and by the parameters of a batch that was run at this version of the
        memory."""
        with self.memory.lock:
            self.memory.enter()
            if self.memory.version != version:
                self._replay_forward(x, index)
            for own, by in zip(self._by, by_outputs, strict=True):
                rows = 0 if by is None else by.shape[0]
                if by is not None:
                    own[:rows].copy_(by)
                if rows < own.shape[0]:
                    own[rows:].zero_()
            self._backward.replay()
            self.memory.version += 1  # the backward pass overwrites what it has read
            by_x = None if self._by_x is None else self._by_x[: x.shape[0]].clone()
            by_parameters = self._by_parameters.copies()
            self.memory.leave()
        return by_x, *by_parameters


class Packed:
    """Tensors side by side in one for each dtype, so that one kernel copies them all."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self._shapes = [None if tensor is None else tensor.shape for tensor in tensors]
        self._dtypes = [None if tensor is None else tensor.dtype for tensor in tensors]
        given = [tensor for tensor in tensors if tensor is not None]
        self._flat = {
            dtype: torch.cat([t.reshape(-1) for t in given if t.dtype == dtype])
            for dtype in dict.fromkeys(tensor.dtype for tensor in given)
        }

    def copies(self) -> list[Tensor | None]:
        """A copy of each tensor."""
        sizes: dict[Any, list[int]] = {dtype: [] for dtype in self._flat}
        for shape, dtype in zip(self._shapes, self._dtypes, strict=True):
            if shape is not None:
                sizes[dtype].append(shape.numel())
        parts = {
            dtype: iter(flat.clone().split_with_sizes(sizes[dtype]))
            for dtype, flat in self._flat.items()
        }
        return [
            None if shape is None else next(parts[dtype]).view(shape)  # type: ignore[index]
            for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
        ]


class _Replay(torch.autograd.Function):
    """A replayed solve with its replayed backward pass."""

    @staticmethod
    def forward(
        ctx: Any, graph: Graph, num_sets: int, x: Tensor, index: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        outputs = graph.run(x, index, num_sets)
        ctx.graph, ctx.version = graph, graph.memory.version
        # Parameters are saved so that autograd notices one that changes before the backward pass.
        ctx.save_for_backward(x, index, *parameters)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # to be differentiated again
            raise RuntimeError(SECOND_GRADIENT)
        x, index, *_ = ctx.saved_tensors
        by_x, *by_parameters = ctx.graph.run_backward(ctx.version, x, index, by_outputs)
        return None, None, by_x, None, *by_parameters


def graphs_serve(x: Tensor) -> bool:
    """Whether a solve of these elements may be replayed: eagerly, on the current GPU."""
    return (
        not torch.compiler.is_compiling()
        and x.is_cuda
        and x.get_device() == torch.cuda.current_device()
        and not shapes_are_fixed()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
    )


def _modes() -> tuple[Hashable, ...]:
    """Global switches that the choice of kernels depends on."""
    autocast = torch.is_autocast_enabled("cuda")
    return (
        torch.get_autocast_dtype("cuda") if autocast else None,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
    )


def _padded_sets(index: Tensor, num_sets: int) -> Sets:
    """The sets of an index in which padding has the number `num_sets`."""
    counts = segment_sum(torch.ones_like(index), index, num_sets + 1)
    counts = torch.nn.functional.pad(counts[:num_sets], (0, 1))
    return make_sets(index, counts, num_sets, padded=True)
