"""A potential summed over elements that are read chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from equipool.chunks.passes import Passes
from equipool.layouts import gather_sets
from equipool.objective import Bounds, LinearMap
from equipool.potentials.base import SummedPotential, sum_over
from equipool.sets import Sets

Method = Literal["value", "gradient"]

SECOND_GRADIENT = "the gradient of a gradient does not pass through chunks: call the layer itself"


class ChunkSum(nn.Module):
    """What one chunk adds to the sum, as a module of all that is trained by it."""

    def __init__(self, potential: nn.Module, encoder: nn.Module | None) -> None:
        super().__init__()
        self.potential = potential
        self.encoder = encoder

    def over(self, x: Tensor, sets: Sets) -> SummedPotential:
        """The potential summed over the elements of the chunk."""
        return sum_over(self.potential, x if self.encoder is None else self.encoder(x), sets)

    def forward(self, method: Method, x: Tensor, sets: Sets, y: Tensor) -> Tensor:
        summed = self.over(x, sets)
        return summed.value(y) if method == "value" else summed.gradient(y)


class ChunkedSum(SummedPotential):
    """The sum of the chunks' sums. Each evaluation reads all chunks, and so does its backward pass,
    which keeps nothing but y.

    Args:
        part: what one chunk adds.
        passes: the chunks.
        num_rows: the number of rows of y.
        row_of: the row of each set, `[num_sets]`, -1 for sets that are left out; None if the rows
            are the sets.
    """

    def __init__(
        self, part: ChunkSum, passes: Passes, num_rows: int, row_of: Tensor | None = None
    ) -> None:
        self.part = part
        self.passes = passes
        self.num_rows = num_rows
        self.row_of = row_of
        self.trainable = {n: p for n, p in part.named_parameters() if p.requires_grad}
        device = passes.device.type
        self.autocast = torch.autocast(
            device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        )

    def value(self, y: Tensor) -> Tensor:
        return _ReadAll.apply(self, "value", y, *self.trainable.values())

    def gradient(self, y: Tensor) -> Tensor:
        return _ReadAll.apply(self, "gradient", y, *self.trainable.values())

    def hessian(self, y: Tensor) -> LinearMap:
        y = y.detach()

        @torch.no_grad()
        def product(direction: Tensor) -> Tensor:
            return self.total(
                torch.zeros_like(y), lambda x, sets: self.part.over(x, sets).hessian(y)(direction)
            )

        return product

    def restrict(self, rows: Tensor) -> ChunkedSum:
        number = rows.new_full((self.num_rows,), -1)
        number[rows] = torch.arange(rows.shape[0], device=rows.device)
        if self.row_of is not None:
            number = torch.where(self.row_of >= 0, number[self.row_of], -1)
        return ChunkedSum(self.part, self.passes, rows.shape[0], number)

    def bounds(self) -> Bounds | None:
        """The sum of the chunks' bounds: valid, but wider than those of all elements at once."""
        lower = upper = torch.zeros(self.num_rows, device=self.passes.device)
        with torch.no_grad():
            for x, sets in self.chunks():
                bounds = self.part.over(x, sets).bounds()
                if bounds is None:
                    return None
                lower, upper = lower + bounds.lower, upper + bounds.upper
        return Bounds(lower, upper)

    def chunks(self) -> Iterator[tuple[Tensor, Sets]]:
        """The elements of each chunk in set order, and their sets; none that are empty."""
        for x, index in self.passes:
            if self.row_of is not None:
                rows = self.row_of.expand(len(x)) if index is None else self.row_of[index]
                kept = rows >= 0
                x, index = x[kept], rows[kept]
            if len(x):
                yield gather_sets(x, index, dim_size=self.num_rows)

    def total(self, zeros: Tensor, evaluate: Callable[[Tensor, Sets], Tensor]) -> Tensor:
        """The sum of what each chunk gives."""
        for x, sets in self.chunks():
            zeros += evaluate(x, sets)
        return zeros

    def derivatives(self, method: Method, y: Tensor, by: Tensor) -> list[Tensor]:
        """The derivatives by y and by the trainable parameters, chunk by chunk."""
        totals = [torch.zeros_like(tensor) for tensor in (y, *self.trainable.values())]
        for x, sets in self.chunks():
            with torch.enable_grad(), self.autocast:
                # Aliases: hooks of the parameters are to run once, with the sum of all chunks.
                point = y.detach().requires_grad_()
                own = {n: p.detach().requires_grad_() for n, p in self.trainable.items()}
                value = torch.func.functional_call(self.part, own, (method, x, sets, point))
            if not value.requires_grad:
                continue
            found = torch.autograd.grad(value, [point, *own.values()], by, allow_unused=True)
            for total, one in zip(totals, found, strict=True):
                if one is not None:
                    total += one
        return totals


class _ReadAll(torch.autograd.Function):
    """The sum of the chunks' values or gradients. The parameters are inputs, so that they receive
    gradients, and so that a change before the backward pass is noticed."""

    @staticmethod
    def forward(
        ctx: Any, summed: ChunkedSum, method: Method, y: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.summed, ctx.method = summed, method
        ctx.save_for_backward(y, *parameters)
        ctx.set_materialize_grads(False)
        zeros = y.new_zeros(y.shape[0]) if method == "value" else torch.zeros_like(y)
        return summed.total(zeros, lambda x, sets: summed.part(method, x, sets, y))

    @staticmethod
    def backward(ctx: Any, by: Tensor | None) -> tuple[Any, ...]:
        y, *parameters = ctx.saved_tensors
        if by is None:  # nothing depends on it
            return (None,) * (3 + len(parameters))
        if torch.is_grad_enabled():
            raise RuntimeError(SECOND_GRADIENT)
        return None, None, *ctx.summed.derivatives(ctx.method, y, by)
