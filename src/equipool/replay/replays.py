"""Which graph serves a batch, and when one is recorded."""

from __future__ import annotations

import copy
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipool.descent import Descent, Ended, Search, outputs_of
from equipool.layer_identity import LayerIdentity, freeze
from equipool.potentials.base import drops_units
from equipool.private_torch import GLOBAL_HOOKS
from equipool.replay.capacity import LEAST_WASTE, MOST_WASTE, Capacity, capacity_for
from equipool.replay.graphs import Memory, Replay, SolveGraph
from equipool.replay.stopping import StoppingGraph
from equipool.sets import Sets
from equipool.steps import Budget

MOST_GRAPHS = 16  # of a kind
MOST_KINDS = 64
PAUSE = 100  # calls without recording after there was not enough memory

Graph = SolveGraph | StoppingGraph


class Program(NamedTuple):
    """What is recorded: functions of a batch that read the tensors of a module."""

    search: Callable[[nn.Module, Tensor, Sets], Search]  # the first argument is like the module
    differentiate: Callable[[Search], Descent]
    module: nn.Module
    budget: Budget
    settings: Hashable  # all else that the functions depend on, beside parts of the module


class Replays:
    """The recorded solves of one module. Copies of the module start without any."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, OrderedDict[Capacity, Graph]] = OrderedDict()
        self._owner: Callable[[], nn.Module | None] = lambda: None
        self._identity: LayerIdentity | None = None
        self._memory: Memory | None = None
        self._served = 0  # batches since the last recording
        self._pause = 0
        self._lock = threading.Lock()
        self.failed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Replays:
        return Replays()

    def __reduce__(self) -> tuple[type[Replays], tuple[()]]:
        return Replays, ()

    def __len__(self) -> int:
        return sum(len(graphs) for graphs in self._kinds.values())

    def solve(self, program: Program, x: Tensor, sets: Sets) -> Descent | None:
        """Solve a batch, its elements `x [N, C]` in set order, by a graph. None if it has to be
        launched kernel by kernel: on a first call, where the program may do what a graph does not,
        and after recording has failed."""
        differentiation = freeze(program.differentiate)
        if self.failed or differentiation is None or any(GLOBAL_HOOKS) or min(_size(sets)) == 0:
            return None
        with self._lock:
            identity = self._current_identity(program.module)
            if identity is None or not identity.known:
                return None
            recorded = torch.is_grad_enabled() and (x.requires_grad or bool(identity.trainable))
            if recorded and program.budget.stop_at is not None:
                return None
            asked = (program.budget, program.settings, differentiation, identity.training())
            kind = (*asked, recorded, recorded and x.requires_grad, x.device, x.dtype, *_modes())
            parameters = identity.trainable if recorded else None
            graph = self._find(kind, _size(sets)) or self._record(
                kind, _size(sets), program, x, parameters
            )
        if graph is None:
            return None
        if parameters is not None:
            found = Replay.apply(graph, sets, x, *parameters)
        else:
            found, _ = graph.run(x, sets)
        y, squared_gradient, num_steps = found
        return Descent(Ended(y), squared_gradient, num_steps)

    def _current_identity(self, module: nn.Module) -> LayerIdentity | None:
        """None for another module than the first, such as a replica of `nn.DataParallel`: replicas
        share this object."""
        if self._owner() is None:
            self._owner, self._identity = weakref.ref(module), None
        if self._owner() is not module:
            return None
        if self._identity is None or not self._identity.holds():
            self._drop_graphs()
            self._identity = LayerIdentity(module)
        return self._identity

    def _drop_graphs(self) -> None:
        self._kinds.clear()
        self._memory = None

    def _find(self, kind: Hashable, need: Capacity) -> Graph | None:
        """The smallest graph that serves. One with much padding is better than another graph."""
        graphs = self._kinds.get(kind, OrderedDict())
        waste = LEAST_WASTE if len(graphs) < MOST_GRAPHS else MOST_WASTE
        fitting = [capacity for capacity in graphs if capacity.holds(need, waste)]
        if not fitting:
            return None
        self._served += 1
        self._kinds.move_to_end(kind)
        graphs.move_to_end(min(fitting))
        return graphs[min(fitting)]

    def _record(
        self,
        kind: Hashable,
        need: Capacity,
        program: Program,
        x: Tensor,
        parameters: Sequence[Tensor] | None,
    ) -> Graph | None:
        # Dropout draws other units at every call.
        if not self._is_worth_recording(kind) or drops_units(program.module):
            return None
        self._memory = self._memory or Memory()
        aliases: dict[int, Tensor] = {}
        module = _alias(program.module, aliases, {})

        def search(x: Tensor, sets: Sets) -> Search:
            return program.search(module, x, sets)

        def solve(x: Tensor, sets: Sets) -> Sequence[Tensor]:
            return outputs_of(program.differentiate(search(x, sets)))

        inputs = None if parameters is None else [aliases[id(p)] for p in parameters]
        capacity = capacity_for(need)
        try:
            graph = (
                SolveGraph(capacity, solve, x, inputs, self._memory)
                if program.budget.stop_at is None
                else StoppingGraph(capacity, search, x, self._memory)
            )
        except RuntimeError as error:
            self._fail(error)
            return None
        graphs = self._kinds[kind]
        graphs[capacity] = graph
        if len(graphs) > MOST_GRAPHS:
            graphs.popitem(last=False)
        self._served = 0
        return graph

    def _is_worth_recording(self, kind: Hashable) -> bool:
        """Not on a first call, which may be the only one, and which compiles the kernels. A graph
        that takes the place of another must be worth it: recording costs about ten launches."""
        if self._pause:
            self._pause -= 1
            return False
        if kind not in self._kinds:
            self._kinds[kind] = OrderedDict()
            if len(self._kinds) > MOST_KINDS:
                self._kinds.popitem(last=False)
            return False
        return len(self._kinds[kind]) < MOST_GRAPHS or self._served >= MOST_GRAPHS

    def _fail(self, error: RuntimeError) -> None:
        self._drop_graphs()
        if _is_out_of_memory(error):
            self._pause = PAUSE
            return
        self.failed = True
        warnings.warn(
            "equipool launches the solve kernel by kernel, which is slower: it could not be "
            f"recorded as a CUDA graph ({error}). Pass cuda_graphs=False to the layer to silence "
            "this",
            stacklevel=2,
        )


def _size(sets: Sets) -> Capacity:
    return Capacity(sets.num_elements, sets.num_sets)


def _alias(module: nn.Module, aliases: dict[int, Tensor], made: dict[int, nn.Module]) -> nn.Module:
    """A module with the same settings, whose tensors share the memory of this one's. They are added
    to `aliases` by the identity of the module's own. A backward pass through the module's own
    parameters would wait for the stream that they were last used on, which must not be recorded.
    """
    if id(module) in made:
        return made[id(module)]
    alias = made[id(module)] = copy.copy(module)
    for parameter in module.parameters(recurse=False):
        like = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        aliases.setdefault(id(parameter), like)
    for buffer in module.buffers(recurse=False):
        aliases.setdefault(id(buffer), buffer.detach())
    for name in ("_parameters", "_buffers"):
        own = vars(module)[name]
        vars(alias)[name] = {key: t if t is None else aliases[id(t)] for key, t in own.items()}
    children = module._modules.items()
    vars(alias)["_modules"] = {
        name: child if child is None else _alias(child, aliases, made) for name, child in children
    }
    return alias


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was the reason: the end of a recording that failed raises another error."""
    return error is not None and (
        isinstance(error, torch.OutOfMemoryError) or _is_out_of_memory(error.__context__)
    )


def _modes() -> tuple[Hashable, ...]:
    """Global switches that the choice of kernels depends on."""
    autocast, products = torch.is_autocast_enabled("cuda"), torch.backends.cuda.matmul
    # Once a program has used the newer name, from torch 2.9 on, the older one raises an error.
    name = "fp32_precision" if hasattr(products, "fp32_precision") else "allow_tf32"
    return (
        torch.get_autocast_dtype("cuda") if autocast else None,
        getattr(products, name),
        products.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
    )
