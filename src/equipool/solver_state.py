"""Solver states: tensors with a row per set, and values that all sets share.

A state is a tuple of tensors, numbers, None and further states. A tensor with dimensions has a row
for each set; one without is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def take_rows(state: T, rows: Tensor) -> T:
    """The state of some rows alone."""
    return _map(lambda tensor: tensor.index_select(0, rows), state)


def put_rows(state: T, rows: Tensor, new: T) -> T:
    """The state with some rows replaced, in order, by the rows of another."""
    return _map(lambda old, new: old.index_copy(0, rows, new), state, new)


def choose_rows(condition: Tensor, yes: T, no: T) -> T:
    """Row by row `yes` where the condition `[num_rows]` holds, and `no` elsewhere."""

    def choose(yes: Tensor, no: Tensor) -> Tensor:
        return yes if yes is no else torch.where(_per_row(condition, yes), yes, no)

    return _map(choose, yes, no)


def with_unchanged(state: T, source: T, condition: Tensor) -> T:
    """Where `condition [num_rows]` holds and values agree, use the source's tensor, so gradients
    reach it."""

    def take(own: Tensor, other: Tensor) -> Tensor:
        if not own.is_floating_point():
            return own
        return torch.where(_per_row(condition, own) & (own == other), other, own)

    return _map(take, state, source)


def with_shared(state: T, source: T) -> T:
    """The state's rows, with the shared values taken from the source."""
    return _map(lambda own, _: own, state, source, shared=lambda _, other: other)


def in_own_memory(state: T) -> T:
    """A copy whose tensors share no memory, so that each can be written to."""
    return _map(torch.clone, state, shared=torch.clone)


def copy_into(state: T, target: T) -> None:
    """Copy into `target` in place; the two may alias."""
    new, old = _leaves(state), _leaves(target)
    for one, other in zip(new, old, strict=True):
        if not isinstance(one, Tensor) and one != other:
            raise RuntimeError(f"a solver's state has {one!r} after a step and {other!r} before")
    places = {tensor.data_ptr() for tensor in old if isinstance(tensor, Tensor)}
    copies = [t.clone() if isinstance(t, Tensor) and t.data_ptr() in places else t for t in new]
    for source, destination in zip(copies, old, strict=True):
        if isinstance(destination, Tensor):
            destination.copy_(source)


def _leaves(state: object) -> list[Any]:
    if not isinstance(state, tuple):
        return [state]
    return [leaf for part in state for leaf in _leaves(part)]


def _per_row(condition: Tensor, like: Tensor) -> Tensor:
    return condition.view(-1, *(1 for _ in like.shape[1:]))


def _map(
    function: Callable[..., Tensor],
    state: T,
    *others: T,
    shared: Callable[..., Tensor] = lambda first, *_: first,
) -> T:
    if isinstance(state, Tensor):
        return (function if state.dim() else shared)(state, *others)  # type: ignore[return-value]
    if isinstance(state, tuple):
        parts = zip(state, *others, strict=True)
        made = [_map(function, *part, shared=shared) for part in parts]
        return type(state)(*made) if hasattr(state, "_fields") else type(state)(made)
    return state
