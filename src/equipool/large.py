"""Sets larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import as_count, check_part
from equipool.chunks import Passes, chunked
from equipool.inference import outside_inference_mode
from equipool.objective import Bounds, LinearMap
from equipool.potentials.base import Potential, SummedPotential, check_no_dropout, sum_over
from equipool.sets import Sets, gather_sets
from equipool.solution import Solution, record
from equipool.starts import check_start

__all__ = ["chunked", "solve_chunks"]

Method = Literal["value", "gradient"]


def solve_chunks(
    layer: EquilibriumAggregation,
    chunks: Iterable[Any],
    *,
    dim_size: int = 1,
    encoder: nn.Module | None = None,
    diagnostics: bool = True,
) -> Solution:
    """Pool sets that do not fit into memory. The result is that of `layer.solve` on all elements at
    once, but for rounding, and so are the gradients of the parameters.

    Every step of the search reads all chunks, and so does every step that the backward pass
    differentiates: the memory is that of a few chunks, whatever the number of elements or steps.
    One more pass at the beginning counts the elements. A thread reads the next chunk while one is
    computed; on a GPU it is copied there meanwhile.

    Args:
        layer: the layer. Its potential must have no dropout, and its start must not read elements.
        chunks: yields `x [n, C]`, or pairs `(x, index)` with the set of each element, in any order;
            tensors or NumPy arrays. Every iteration must give the same elements: a list,
            `chunked(x, index)`, or any object whose `__iter__` begins again.
        dim_size: the number of sets.
        encoder: applied to each chunk, `[n, D] -> [n, C]`, and trained with the layer. It must
            treat each element by itself.
        diagnostics: whether to compute energy, residual and convergence, which reads the chunks
            twice more. Without, the call is recorded by `equipool.record()` as one of the layer.

    Chunks receive no gradient. A search with `StronglyConvexNesterov` takes other steps to the same
    minimum, because it adds up the chunks' bounds. `Newton` reads all chunks once for each channel
    of y in every step.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> chunks = [torch.randn(1000, 3), torch.randn(500, 3)]
        >>> solution = equipool.large.solve_chunks(layer, chunks)
        >>> solution.y.sum().backward()
        >>> torch.allclose(solution.y, layer(torch.cat(chunks)), atol=1e-4)
        True
    """
    check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
    encoder = nn.Identity() if encoder is None else encoder
    _check_repeatable(layer, encoder)
    with outside_inference_mode():
        passes = Passes(chunks, as_count("dim_size", dim_size, least=1), _device(layer, encoder))
        x, sets = _count(layer, passes, encoder)
        over_chunks = _with_potential(layer, ChunkedPotential(layer.potential, encoder, passes))
        if diagnostics:
            return over_chunks.solve(x, sets)
        with record(diagnostics=False) as solutions:
            over_chunks(x, sets)
        return solutions[0]


def _with_potential(layer: EquilibriumAggregation, potential: Potential) -> EquilibriumAggregation:
    """A layer with the same parts but another potential."""
    other = EquilibriumAggregation(
        layer.in_channels, layer.out_channels, potential=potential, regularizer=layer.regularizer,
        solver=layer.solver, differentiation=layer.differentiation, start=layer.start,
        steps=layer.steps, scaling=layer.scaling, cuda_graphs=False,
    )  # fmt: skip
    other.training = layer.training  # of itself alone: `train` would switch the shared parts
    return other


@torch.no_grad()
def _count(
    layer: EquilibriumAggregation, passes: Passes, encoder: nn.Module
) -> tuple[Tensor, Sets]:
    """Read all chunks once. Returns no elements, `[0, C]`, of their dtype, and their sets."""
    counts = torch.zeros(passes.num_sets, dtype=torch.long, device=passes.device)
    invalid = torch.zeros_like(counts, dtype=torch.bool)
    like = None
    for x, index in passes:
        if like is not None and len(x) == 0:
            continue
        encoded = encoder(x)
        if encoded.shape[:-1] != x.shape[:1]:
            raise ValueError(
                f"the encoder returned shape {list(encoded.shape)} for a chunk of {len(x)} "
                f"elements, expected [{len(x)}, C]"
            )
        layer._check_fits(encoded)
        like = encoded.new_empty(0, encoded.shape[1])  # no view, which would keep the chunk
        index = index if index is not None else counts.new_zeros(len(x))
        counts += torch.bincount(index, minlength=passes.num_sets)
        invalid[index[~torch.isfinite(encoded).all(-1)]] = True
    if like is None:
        raise ValueError("chunks is empty, expected one chunk or more")
    valid = ~invalid.unsqueeze(-1) if bool(invalid.any()) else None
    counts = torch.where(invalid, 0, counts)
    nothing = counts.new_empty(0)
    return like, Sets(nothing, counts, passes.num_sets, padded=False, blocks=None, valid=valid)


def _device(layer: EquilibriumAggregation, encoder: nn.Module) -> torch.device:
    modules = nn.ModuleList([layer, encoder])
    tensors = chain(modules.parameters(), modules.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _check_repeatable(layer: EquilibriumAggregation, encoder: nn.Module) -> None:
    """Every pass must compute the same energy."""
    check_start(layer.start, "chunks are read one at a time")
    for name, part in {"potential": layer.potential, "encoder": encoder}.items():
        check_no_dropout(name, part, "every pass over the chunks would draw other units")
        for module in part.modules():
            if module.training and isinstance(module, _BatchNorm):
                raise ValueError(
                    f"the {name} has {module} in training mode, which uses the mean of a chunk, "
                    "not of the whole: call its eval() or leave it out"
                )


class ChunkedPotential(Potential):
    """A potential of encoded elements that are read chunk by chunk."""

    def __init__(self, potential: nn.Module, encoder: nn.Module, passes: Passes) -> None:
        super().__init__()
        self.chunk_sum = ChunkSum(potential, encoder)
        self.passes = passes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.chunk_sum.potential(self.chunk_sum.encoder(x), y)

    def bind(self, x: Tensor, sets: Sets) -> ChunkedSum:
        """The sum over all chunks; there are no other elements. Elements of a set that is not valid
        are left out, as zero times NaN is NaN."""
        valid = None if sets.valid is None else sets.valid.squeeze(-1)
        return ChunkedSum(self.chunk_sum, self.passes, valid)


class ChunkSum(nn.Module):
    """What one chunk adds to the sum, as a module of all that is trained by it."""

    def __init__(self, potential: nn.Module, encoder: nn.Module) -> None:
        super().__init__()
        self.potential = potential
        self.encoder = encoder

    def bind(self, x: Tensor, sets: Sets) -> SummedPotential:
        """The potential summed over the elements of the chunk."""
        return sum_over(self.potential, self.encoder(x), sets)

    def forward(self, method: Method, x: Tensor, sets: Sets, y: Tensor) -> Tensor:
        summed = self.bind(x, sets)
        return summed.value(y) if method == "value" else summed.gradient(y)


class ChunkedSum(SummedPotential):
    """The sum of the chunks' sums. Each evaluation reads all chunks, and so does its backward pass,
    which keeps nothing but y.

    Args:
        part: what one chunk adds.
        passes: the chunks.
        valid: whether the elements of a set count, `[num_sets]`; None if all do.
    """

    def __init__(self, part: ChunkSum, passes: Passes, valid: Tensor | None) -> None:
        self.part = part
        self.passes = passes
        self.valid = valid
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
                torch.zeros_like(y), lambda x, sets: self.part.bind(x, sets).hessian(y)(direction)
            )

        return product

    def bounds(self) -> Bounds | None:
        """The sum of the chunks' bounds: valid, but wider than those of all elements at once."""
        lower = upper = torch.zeros(self.passes.num_sets, device=self.passes.device)
        with torch.no_grad():
            for x, sets in self.chunks():
                bounds = self.part.bind(x, sets).bounds()
                if bounds is None:
                    return None
                lower, upper = lower + bounds.lower, upper + bounds.upper
        return Bounds(lower, upper)

    def chunks(self) -> Iterator[tuple[Tensor, Sets]]:
        """The elements of each chunk in set order, and their sets; none that are empty."""
        for x, index in self.passes:
            if self.valid is not None:
                index = index if index is not None else torch.zeros_like(x[:, 0], dtype=torch.long)
                kept = self.valid[index]
                x, index = x[kept], index[kept]
            if len(x):
                yield gather_sets(x, index, dim_size=self.passes.num_sets)

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
            raise RuntimeError(
                "the gradient of a gradient does not pass through chunks: call the layer itself"
            )
        return None, None, *ctx.summed.derivatives(ctx.method, y, by)
