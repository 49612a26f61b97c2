"""Sets whose elements are on several processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from equipool.checks import values_are_at_hand
from equipool.descent import Descent
from equipool.objective import Bounds, LinearMap
from equipool.ops.execution import shapes_are_fixed
from equipool.potentials.base import SummedPotential, check_no_dropout
from equipool.sets import Sets
from equipool.starts import Start, check_start
from equipool.steps import Budget

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup


class _Block:
    """An open `with sharded()` block."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size = distributed.get_world_size(group)
        self.leads = distributed.get_rank(group) == 0
        self.checked = False


class _Blocks(threading.local):
    """This thread's open blocks. Not a context variable: torch.compile cannot trace those."""

    def __init__(self) -> None:
        self.open: list[_Block] = []


_blocks = _Blocks()


@contextmanager
def sharded(group: ProcessGroup | None = None) -> Iterator[None]:
    """Inside the block, the elements of a set may be on several processes.

    Each process calls the layer with its own elements; sets have the same numbers everywhere, so
    give `dim_size`. Every step adds up the gradients of all processes, and every process gets the
    same y, to the bit. A process without elements of a set, or without any, takes part all the
    same. Works for the layer's call, `solve`, `energy` and `equipool.solve_chunks`, with any solver
    and differentiation.

    Gradients are those of the sum of the processes' losses, as with `DistributedDataParallel`
    before it averages. So wrap the model in it, or call `average_gradients` after the backward
    pass; the parameters' gradients are then those of the mean loss. `x.grad` is not averaged: where
    all processes compute the same loss, it is the number of processes times that of one process.

    All processes must make the same calls in the same order, and all must run the backward pass.
    The first call in a block compares sizes, dtypes, settings and parameters, and every call on the
    CPU all but the parameters. Recorded CUDA graphs are not used.

    Args:
        group: the processes that share the sets. Default: all.

    Example:
        Run by `torchrun --nproc-per-node 2`, after `torch.distributed.init_process_group("gloo")`:

        ```python
        with equipool.sharded():
            y = layer(x_of_this_process, index_of_this_process, dim_size=num_sets)
        loss(y).backward()
        equipool.average_gradients(layer)
        ```
    """
    block = _Block(_initialised(group))
    _blocks.open.append(block)
    try:
        yield
    finally:
        _blocks.open[:] = [other for other in _blocks.open if other is not block]


def average_gradients(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Replace the gradient of every parameter by its mean over the processes, as
    `DistributedDataParallel` does during the backward pass. A parameter without a gradient counts
    as zero where other processes have one.

    Args:
        module: the whole model: the layer, and what comes before and after it.
        group: the processes. Default: all.
    """
    group = _initialised(group)
    size = distributed.get_world_size(group)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        return
    has = torch.tensor([p.grad is not None for p in trainable], device=trainable[0].device).long()
    anywhere = _total(has, group).tolist()
    for parameter in (p for p, count in zip(trainable, anywhere, strict=True) if count):
        own = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        parameter.grad = _total(own, group) / size


def _initialised(group: ProcessGroup | None) -> ProcessGroup:
    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError(
            "torch.distributed is not initialised: start the processes with torchrun and call "
            'torch.distributed.init_process_group("gloo"), or "nccl" for GPUs, first'
        )
    found = group if group is not None else distributed.group.WORLD
    if found is None or distributed.get_rank(found) < 0:
        raise ValueError("group does not contain this process, expected a group that does")
    return found


# The functions below do nothing outside of a block.


def is_sharded() -> bool:
    """Whether a block is open in this thread."""
    return bool(_blocks.open)


def refuse_sharded(name: str) -> None:
    """Reject a call that needs all elements of a set in this process."""
    if _blocks.open:
        raise RuntimeError(
            f"{name} is called inside sharded(), expected outside: it needs all elements of a set "
            "on one process"
        )


def share_sets(layer: Any, x: Tensor, sets: Sets, budget: Budget | None) -> Sets:
    """The sets with the numbers of elements of all processes. A set that is not valid on one of
    them is valid on none. Compares the calls of the processes first."""
    if not _blocks.open:
        return sets
    block = _blocks.open[-1]
    _check_agreement(block, layer, x, sets, budget)
    valid = sets.valid.squeeze(-1) if sets.valid is not None else sets.counts >= 0
    counts, invalid = _total(torch.stack([sets.counts, (~valid).long()]), block.group)
    if values_are_at_hand(x) and not bool(invalid.any()):
        return replace(sets, counts=counts)
    valid = invalid == 0
    return replace(sets, counts=torch.where(valid, counts, 0), valid=valid.unsqueeze(-1))


def share_potential(summed: SummedPotential) -> SummedPotential:
    """The sum over the elements of all processes."""
    return ShardedSum(summed, _blocks.open[-1].group) if _blocks.open else summed


def share_start(start: Start, rows: Tensor) -> Tensor:
    """The same starts everywhere: those that the first process drew, if they are random."""
    if not _blocks.open or start.recordable:
        return rows
    block = _blocks.open[-1]
    return _AllReduce.apply(rows if block.leads else 0 * rows, block.group)


def share_output(descent: Descent) -> Descent:
    """The result of a search, whose y receives the same derivative on all processes: the mean. A
    backward pass may depend on it, and decides the same everywhere."""
    if not _blocks.open:
        return descent
    block = _blocks.open[-1]
    return descent._replace(y=_MeanDerivative.apply(descent.y, block.group, block.size))


class ShardedSum(SummedPotential):
    """The sum of the processes' summed potentials.

    Args:
        own: the sum over this process's elements.
        group: the processes.
    """

    def __init__(self, own: SummedPotential, group: ProcessGroup) -> None:
        self.own = own
        self.group = group

    def value(self, y: Tensor) -> Tensor:
        return _AllReduce.apply(self.own.value(y), self.group)

    def gradient(self, y: Tensor) -> Tensor:
        return _AllReduce.apply(self.own.gradient(y), self.group)

    def hessian(self, y: Tensor) -> LinearMap:
        product = self.own.hessian(y)
        return lambda direction: _total(product(direction), self.group)

    def restrict(self, rows: Tensor) -> ShardedSum | None:
        own = self.own.restrict(rows)
        return None if own is None else ShardedSum(own, self.group)

    def bounds(self) -> Bounds | None:
        """The sum of the processes' bounds: valid, but wider than those of all elements at once."""
        own = self.own.bounds()
        return None if own is None else Bounds(*(_total(bound, self.group) for bound in own))


def _total(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the processes, without a graph."""
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


class _AllReduce(torch.autograd.Function):
    """The sum over the processes. What a process adds reaches the loss of each, so the derivatives
    are added up as well."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _total(rows, group)

    @staticmethod
    def backward(ctx: Any, by_total: Tensor) -> tuple[Tensor, None]:
        return _AllReduce.apply(by_total, ctx.group), None


class _MeanDerivative(torch.autograd.Function):
    """y, with the mean of the processes' derivatives, whose sum over the processes is the same."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup, size: int) -> Tensor:
        ctx.group, ctx.size = group, size
        return y.clone()

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor, None, None]:
        return _AllReduce.apply(by_y, ctx.group) / ctx.size, None, None


def _check_agreement(
    block: _Block, layer: Any, x: Tensor, sets: Sets, budget: Budget | None
) -> None:
    """Compare the calls of the processes: sums of other sizes would never end."""
    if shapes_are_fixed() or (block.checked and not values_are_at_hand(x)):
        return
    settings = _settings(layer, x, sets, budget)
    if not block.checked:
        sums = [p.detach().sum(dtype=torch.float64) for p in layer.parameters()]
        settings["sum of the layer's parameters"] = float(torch.stack(sums).sum()) if sums else 0.0
    block.checked = True
    text = repr(sorted(settings.items()))
    own = torch.tensor([_digest(text)], device=x.device)
    found = [torch.empty_like(own) for _ in range(block.size)]
    distributed.all_gather(found, own, group=block.group)
    if len(set(torch.cat(found).tolist())) > 1:
        _raise_disagreement(block, settings)
    # The same on all processes by now, so that none waits for one that has failed.
    check_no_dropout("potential", layer.potential, "the processes would draw different units")
    check_start(layer.start, "a process has only some of them")


def _settings(layer: Any, x: Tensor, sets: Sets, budget: Budget | None) -> dict[str, object]:
    """What must be the same on all processes."""
    return {
        "dim_size": sets.num_sets,
        "number of rows": sets.num_rows,
        "number of channels": x.shape[-1],
        "dtype of x": x.dtype,
        "number of steps": budget and budget.num_steps,
        "tolerance": budget and (budget.converged_at, budget.stop_at),
        "layer": layer.extra_repr(),
        "potential": f"{type(layer.potential).__name__}({layer.potential.extra_repr()})",
        "potential in training mode": layer.potential.training,
        "start": repr(layer.start),
        "solver": repr(layer.solver),
        "regularizer": repr(layer.regularizer),
        "training mode": layer.training,
        "requires_grad of x": x.requires_grad,
        "gradients enabled": torch.is_grad_enabled(),
    }


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _raise_disagreement(block: _Block, settings: dict[str, object]) -> None:
    """Exchange what differs and name it, on all processes."""
    everyone: list[Any] = [None] * block.size
    distributed.all_gather_object(everyone, settings, group=block.group)
    for name in sorted({name for one in everyone for name in one}):
        values = [one.get(name) for one in everyone]
        other = next((i for i, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise ValueError(
                f"the processes disagree: {name} is {values[0]} on rank 0 of the group and "
                f"{values[other]} on rank {other}, expected the same on all inside sharded()"
            )
