"""Sets whose elements are on several processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from equipool.layer_identity import settings
from equipool.objective import Bounds, LinearMap
from equipool.ops.execution import shapes_are_fixed, values_are_at_hand
from equipool.potentials.base import SummedPotential, check_no_dropout
from equipool.sets import Sets
from equipool.starts import check_start

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup

__all__ = ["average_gradients", "sharded"]


# The open `with sharded()` blocks of this process, the innermost last: the group of each, and the
# layers that were compared in it.
open_blocks: list[tuple[ProcessGroup, list[nn.Module]]] = []


@contextmanager
def sharded(group: ProcessGroup | None = None) -> Iterator[None]:
    """Inside the block, the elements of a set may be on several processes.

    Each process calls the layer with its own elements; sets have the same numbers everywhere, so
    give `dim_size`. Every step adds up the gradients of all processes, and every process gets the
    same y, to the bit. A process without elements of a set, or without any, takes part all the
    same. Works for the layer's call, `solve`, `energy` and `equipool.large.solve_chunks`, with any
    solver and differentiation. `Exact` takes two sums per pass over the elements.

    Gradients are those of the sum of the processes' losses, as with `DistributedDataParallel`
    before it averages. So wrap the model in it, or call `average_gradients` after the backward
    pass; the parameters' gradients are then those of the mean loss. `x.grad` is not averaged: where
    all processes compute the same loss, it is the number of processes times that of one process.

    All processes must make the same calls in the same order, and all must run the backward pass.
    The first call of a layer in a block compares sizes, dtypes, settings and parameters. The block
    holds for all threads of the process. Recorded CUDA graphs are not used.

    Args:
        group: the processes that share the sets. Default: all.

    Example:
        Run by `torchrun --nproc-per-node 2`, after `torch.distributed.init_process_group("gloo")`:

        ```python
        with equipool.distributed.sharded():
            y = layer(x_of_this_process, index_of_this_process, dim_size=num_sets)
        loss(y).backward()
        equipool.distributed.average_gradients(layer)
        ```
    """
    open_blocks.append((_initialised(group), []))
    try:
        yield
    finally:
        open_blocks.pop()


def average_gradients(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Replace the gradient of every parameter by its mean over the processes, as
    `DistributedDataParallel` does during the backward pass. A parameter without a gradient counts
    as zero where other processes have one.

    Args:
        module: the whole model: the layer, and what comes before and after it.
        group: the processes. Default: all.
    """
    group = _initialised(group)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        return
    has = torch.tensor([p.grad is not None for p in trainable], device=trainable[0].device).long()
    anywhere = _total(has, group).tolist()
    used = [parameter for parameter, count in zip(trainable, anywhere, strict=True) if count]
    for kind in {(p.dtype, p.device): None for p in used}:  # one sum for all of a kind
        alike = [p for p in used if (p.dtype, p.device) == kind]
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
        total = _total(torch.cat([one.flatten() for one in own]), group)
        means = (total / distributed.get_world_size(group)).split([p.numel() for p in alike])
        for parameter, mean in zip(alike, means, strict=True):
            parameter.grad = mean.view_as(parameter)


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


def refuse_sharded(name: str) -> None:
    """Reject a call that needs all elements of a set in this process."""
    if open_blocks:
        raise RuntimeError(
            f"{name} is called inside sharded(), expected outside: it needs all elements of a set "
            "on one process"
        )


def over_processes(layer: Any, x: Tensor, sets: Sets) -> Sets:
    """The sets of an open block, with the numbers of elements of all processes, which must agree on
    the call. A set that is not valid on one process is valid on none."""
    group, compared = open_blocks[-1]
    if not shapes_are_fixed() and not any(layer is other for other in compared):
        compared.append(layer)
        _check_agreement(group, layer, x, sets)
    valid = sets.valid.squeeze(-1) if sets.valid is not None else sets.counts >= 0
    counts, invalid = _total(torch.stack([sets.counts, (~valid).long()]), group)
    totals = sets.totals if sets.weight is None else _AllReduce.apply(sets.totals, group)
    if values_are_at_hand(x) and not bool(invalid.any()):
        return replace(sets.counted(counts, totals), group=group)
    valid = (invalid == 0).unsqueeze(-1)
    counts = torch.where(invalid == 0, counts, 0)
    return replace(sets.counted(counts, totals), valid=valid, group=group)


def _check_agreement(group: ProcessGroup, layer: Any, x: Tensor, sets: Sets) -> None:
    """Compare the calls of the processes: sums of other sizes would never end."""
    total = sum(float(p.detach().sum(dtype=torch.float64)) for p in layer.parameters())
    weight = sets.weight
    own = {name: repr(value) for name, value in settings(layer).items()} | {
        "dim_size": f"{sets.num_sets}, in {sets.num_rows} rows",
        "x": f"{x.shape[-1]} channels of {x.dtype}",
        "requires_grad of x": repr(x.requires_grad),
        "weight": "not given" if weight is None else f"given, requires_grad {weight.requires_grad}",
        "grad mode": repr(torch.is_grad_enabled()),
        "training mode": repr([module.training for module in layer.modules()]),
        "sum of the layer's parameters": repr(total),
    }
    everyone: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everyone, own, group=group)
    first = everyone[0]
    for rank, other in enumerate(everyone):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                raise ValueError(
                    f"the processes disagree: {name} is {first.get(name)} on rank 0 of the group "
                    f"and {other.get(name)} on rank {rank}, expected the same on all inside "
                    "sharded()"
                )
    # The same on all processes by now, so that none waits for one that has failed.
    check_no_dropout("potential", layer.potential, "the processes would draw different units")
    check_start(layer.start, "a process has only some of them")


class ShardedSum(SummedPotential):
    """The sum of the processes' summed potentials.

    Args:
        own: the sum over this process's elements.
        group: the processes.
    """

    has_all = False

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


def of_first_process(rows: Tensor, group: ProcessGroup) -> Tensor:
    """The rows of the first process on all of them."""
    return _AllReduce.apply(rows if distributed.get_rank(group) == 0 else 0 * rows, group)


def with_mean_derivative(y: Tensor, group: ProcessGroup) -> Tensor:
    """y, which receives the mean of the processes' derivatives. Their sum over the processes is the
    same, and a backward pass that depends on the derivative decides the same everywhere."""
    size = distributed.get_world_size(group)
    y = y.clone()
    if y.requires_grad:
        y.register_hook(lambda by_y: _AllReduce.apply(by_y, group) / size)
    return y


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
