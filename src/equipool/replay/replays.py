"""Which graph serves a batch, and when one is recorded."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipool.descent import Descent, Search
from equipool.ops.availability import is_eager_on_gpu, shapes_are_fixed
from equipool.replay.capacity import LEAST_WASTE, MOST_WASTE, Capacity, capacity_for
from equipool.replay.graphs import Memory, Replay, SolveGraph
from equipool.replay.stopping import StoppingGraph
from equipool.replay.watch import Watch
from equipool.sets import Sets
from equipool.steps import Budget

MOST_GRAPHS = 16


class Replays:
    """The graphs of one layer. Copies of the layer start without any."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[Hashable, Capacity], SolveGraph | StoppingGraph] = {}
        self._seen: set[Hashable] = set()
        self._watch: Watch | None = None
        self._memory: Memory | None = None
        self._waste = LEAST_WASTE
        self._lock = threading.Lock()
        self.failed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Replays:
        return Replays()

    def __reduce__(self) -> tuple[type[Replays], tuple[()]]:
        return Replays, ()

    def __len__(self) -> int:
        return len(self._graphs)

    def solve(
        self, layer: Any, x: Tensor, sets: Sets, budget: Budget, keep_squared_gradient: bool
    ) -> Descent | None:
        """Solve a batch, its elements `x [N, C]` in set order, by a graph. None if it has to be
        launched kernel by kernel: on a first call, and after recording has failed."""
        if self.failed or sets.num_elements == 0 or sets.num_sets == 0:
            return None
        with self._lock:
            watch = self._current_watch(layer)
            recorded = torch.is_grad_enabled() and (x.requires_grad or bool(watch.trainable))
            if recorded and budget.stop_at is not None:
                return None
            asked = (budget, keep_squared_gradient, recorded, recorded and x.requires_grad)
            kind = (*asked, layer.scaling, layer.differentiation, x.device, x.dtype, *_modes())
            need = Capacity(sets.num_elements, sets.num_sets)
            graph = self._find(kind, need) if watch.replayable else None
            if graph is None and watch.replayable and self._is_worth_recording(kind):
                graph = self._record(layer, kind, need, x)
        if graph is None:
            return None
        found = Replay.apply(graph, sets, x, *watch.trainable) if recorded else graph.run(x, sets)
        y, squared_gradient, steps = found
        return Descent(y, squared_gradient, steps)

    def _current_watch(self, layer: nn.Module) -> Watch:
        if self._watch is None or not self._watch.holds():
            self._drop_graphs()
            self._seen.clear()
            self._watch = Watch(layer)
        return self._watch

    def _drop_graphs(self) -> None:
        self._graphs.clear()
        self._memory = None

    def _find(self, kind: Hashable, need: Capacity) -> SolveGraph | StoppingGraph | None:
        kinds = [capacity for own, capacity in self._graphs if own == kind]
        fitting = [capacity for capacity in kinds if capacity.holds(need, self._waste)]
        return self._graphs[kind, min(fitting)] if fitting else None

    def _is_worth_recording(self, kind: Hashable) -> bool:
        """Not on a first call, which may be the only one, and which compiles the kernels."""
        if kind not in self._seen:
            self._seen.add(kind)
            return False
        if len(self._graphs) < MOST_GRAPHS:
            return True
        self._waste *= 2  # begin again with graphs that each serve more sizes
        self._drop_graphs()
        if self._waste > MOST_WASTE:
            self._give_up("the sizes of the batches vary too much for CUDA graphs")
        return not self.failed

    def _record(
        self, layer: Any, kind: tuple[Any, ...], need: Capacity, x: Tensor
    ) -> SolveGraph | StoppingGraph | None:
        capacity = capacity_for(need, self._waste)
        self._memory = self._memory or Memory()
        alias, aliases = _alias(layer)
        budget, keep, recorded, *_ = kind

        def search(x: Tensor, sets: Sets) -> Search:
            return alias.search(x, sets, budget, keep_squared_gradient=keep)

        def solve(x: Tensor, sets: Sets) -> Sequence[Tensor]:
            return alias.differentiation(search(x, sets))[:3]

        assert self._watch is not None
        parameters = [aliases[id(p)] for p in self._watch.trainable] if recorded else None
        try:
            graph = (
                SolveGraph(capacity, solve, x, parameters, self._memory)
                if budget.stop_at is None
                else StoppingGraph(capacity, search, x, self._memory)
            )
        except RuntimeError as error:
            self._give_up(f"it could not be recorded as a CUDA graph ({error})")
            return None
        self._graphs[kind, capacity] = graph
        return graph

    def _give_up(self, reason: str) -> None:
        self._drop_graphs()
        self.failed = True
        warnings.warn(
            f"equipool launches the solve kernel by kernel, which is slower: {reason}. "
            "Pass cuda_graphs=False to the layer to silence this",
            stacklevel=7,
        )


def graphs_serve(x: Tensor) -> bool:
    """Whether a solve of these elements may be replayed: it would launch kernels eagerly."""
    return (
        is_eager_on_gpu(x) and not shapes_are_fixed() and torch._C._len_torch_dispatch_stack() == 0
    )


def _alias(layer: Any) -> tuple[Any, dict[int, Tensor]]:
    """A copy of the layer whose tensors share the memory of the layer's own, and these tensors by
    the identity of the layer's. A backward pass through the layer's own parameters would wait for
    the stream that they were last used on, which must not be recorded."""
    aliases: dict[int, Any] = {}
    for tensor in layer.parameters():
        aliases[id(tensor)] = nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    for tensor in layer.buffers():
        aliases[id(tensor)] = tensor.detach()
    return copy.deepcopy(layer, dict(aliases)), aliases


def _modes() -> tuple[Hashable, ...]:
    """Global switches that the choice of kernels depends on."""
    autocast = torch.is_autocast_enabled("cuda")
    return (
        torch.get_autocast_dtype("cuda") if autocast else None,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
    )
