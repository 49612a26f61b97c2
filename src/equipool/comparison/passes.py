"""One pass forward and backward through a layer, and the gradients it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.solution import Solution

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Batch:
    """What a layer is called with."""

    x: Tensor
    index: Tensor | None = None
    ptr: Tensor | None = None
    mask: Tensor | None = None
    dim_size: int | None = None

    def own(self, dtype: torch.dtype) -> Batch:
        """A copy with no history, whose elements ask for a gradient."""
        x = self.x.detach().clone().to(dtype).requires_grad_()
        index, ptr, mask = (
            None if part is None else part.detach().clone()
            for part in (self.index, self.ptr, self.mask)
        )
        return Batch(x, index, ptr, mask, self.dim_size)

    def pool(self, layer: EquilibriumAggregation) -> Tensor:
        """The layer's output."""
        return layer(self.x, self.index, ptr=self.ptr, mask=self.mask, dim_size=self.dim_size)

    def solve(self, layer: EquilibriumAggregation) -> Solution:
        """The layer's solution."""
        return layer.solve(self.x, self.index, ptr=self.ptr, mask=self.mask, dim_size=self.dim_size)


class Gradient(NamedTuple):
    """The gradients of one pass."""

    parameters: Tensor  # [P] of all learned parameters, in float64
    x: Tensor  # of all elements, flat, in float64
    converged: float  # fraction of the sets
    fallback: float | None  # fraction of the sets; None where the way knows no fallback


class TrainingPass:
    """Copies of a layer and a batch, to run forward and backward repeatedly.

    Args:
        layer: copied.
        batch: copied.
        upstream: derivative of the loss by the output, `[B, K]`.
        dtype: of the copies; default: the batch's.
    """

    def __init__(
        self,
        layer: EquilibriumAggregation,
        batch: Batch,
        upstream: Tensor,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.layer = copy.deepcopy(layer)
        if dtype is not None:
            self.layer.to(dtype)
        self.batch = batch.own(dtype or batch.x.dtype)
        self.upstream = upstream.to(self.batch.x.dtype)
        self.clear()

    def __call__(self) -> None:
        """Forward and backward, as in a training step."""
        self.clear()
        self._backward(self.batch.pool(self.layer))

    def clear(self) -> None:
        """Clear the gradients."""
        self.layer.zero_grad(set_to_none=True)
        self.batch.x.grad = None

    def gradient(self) -> Gradient:
        """What a pass finds, and how its solve went."""
        self.clear()
        solution = self.batch.solve(self.layer)
        self._backward(solution.y)
        learned = [p for p in self.layer.parameters() if p.requires_grad]
        parts = [_flat(p, p.grad) for p in learned]
        return Gradient(
            torch.cat(parts) if parts else self.upstream.new_zeros(0, dtype=torch.float64),
            _flat(self.batch.x, self.batch.x.grad),
            _fraction(solution.converged, solution.occupied),
            # The backward pass adds to it, so it is read last.
            None if solution.fallback is None else _fraction(solution.fallback, solution.occupied),
        )

    def _backward(self, y: Tensor) -> None:
        if y.requires_grad:  # a solve of no steps ends where it starts, whatever is learned
            y.backward(self.upstream.to(y.dtype))


def upstream_of(loss: Loss, y: Tensor) -> Tensor:
    """The derivative of a loss by the output, `[B, K]`."""
    y = y.detach().requires_grad_()
    value = loss(y)
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss returned {found}, expected a tensor with one number")
    if not value.requires_grad:
        raise ValueError("loss returned a constant, expected a function of y")
    (derivative,) = torch.autograd.grad(value, y, allow_unused=True)
    if derivative is None:
        raise ValueError("loss returned a value that does not depend on y, expected one that does")
    return derivative


def random_projection(y: Tensor) -> Tensor:
    """The derivative by y of a sum with random weights, the same at every call, `[B, K]`."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)


def _flat(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    """A gradient that did not arrive is zero."""
    values = torch.zeros_like(tensor) if gradient is None else gradient
    values = values.values() if values.is_nested else values
    return values.detach().double().flatten()


def _fraction(sets: Tensor | None, occupied: Tensor) -> float:
    """Of the sets that have elements."""
    assert sets is not None
    return float(sets[occupied].double().mean()) if occupied.any() else 1.0
