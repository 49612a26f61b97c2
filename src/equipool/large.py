"""Sets larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_part
from equipool.objective import Bounds, LinearMap
from equipool.ops.execution import normal, outside_inference_mode
from equipool.potentials.base import Potential, SummedPotential, check_no_dropout, sum_over
from equipool.sets import Sets, gather_sets, without_padding
from equipool.solution import Solution, record
from equipool.starts import check_start

__all__ = ["chunked", "solve_chunks"]

Method = Literal["value", "gradient"]

CHUNK_SIZE = 65536  # elements


class chunked:  # noqa: N801, called like a function
    """Chunks of anything that has a length and can be sliced: a tensor, a NumPy array or memory
    map, or an object of your own with `__len__` and `__getitem__`.

    Args:
        x: the elements, `[N, C]`.
        index: the set of each element, `[N]`; None if there is one set.
        size: elements per chunk.
        weight: the weight of each element, `[N]`. Default: 1 for all.

    Example:
        >>> [len(chunk) for chunk in equipool.large.chunked(torch.randn(10, 3), size=4)]
        [4, 4, 2]
    """

    def __init__(
        self, x: Any, index: Any = None, size: int = CHUNK_SIZE, weight: Any = None
    ) -> None:
        self.x, self.index, self.size, self.weight = x, index, size, weight
        for name, given in {"index": index, "weight": weight}.items():
            if given is not None and len(given) != len(x):
                raise ValueError(f"{name} has {len(given)} elements, expected {len(x)}, as x has")

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.x), self.size):
            rows = slice(start, start + self.size)
            index = None if self.index is None else self.index[rows]
            if self.weight is not None:
                yield self.x[rows], index, self.weight[rows]
            else:
                yield self.x[rows] if index is None else (self.x[rows], index)


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
    computed.

    Args:
        layer: the layer. Its potential must have no dropout, and its start must not read elements.
        chunks: yields `x [n, C]`, or pairs `(x, index)` with the set of each element, in any order,
            or `(x, index, weight)` with weights as well; tensors or NumPy arrays. Every iteration
            must give the same elements: a list, `chunked(x, index)`, or any object whose `__iter__`
            begins again.
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
        passes = Passes(chunks, dim_size, _device(layer, encoder))
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


class Passes:
    """Chunks that are read again by each iteration, each while the one before it is computed:
    elements `[n, C]` in set order, and their sets.

    Args:
        chunks: the caller's, a re-iterable.
        num_sets: the number of sets.
        device: where the chunks are computed.
    """

    def __init__(self, chunks: Iterable[Any], num_sets: int, device: torch.device) -> None:
        self.chunks = chunks
        self.num_sets = num_sets
        self.device = device
        self.num_elements: int | None = None  # in all chunks, after the first pass
        self.recorded = torch.is_grad_enabled()
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __iter__(self) -> Iterator[tuple[Tensor, Sets]]:
        count, chunks = 0, iter(self.chunks)
        with ThreadPoolExecutor(1, thread_name_prefix="equipool-chunks") as reader:
            following = reader.submit(self._read, chunks)
            while (chunk := following.result()) is not None:
                following = reader.submit(self._read, chunks)
                x, index, weight = chunk
                count += len(x)
                found = gather_sets(x, index, dim_size=self.num_sets, weight=weight)
                yield without_padding(*found)
        if self.num_elements is None:
            self.num_elements = count
        if count != self.num_elements:
            raise RuntimeError(
                f"chunks gave {count} elements in this pass and {self.num_elements} in the first, "
                "expected the same in every pass: every step of the search reads them again"
            )

    def _read(self, chunks: Iterator[Any]) -> list[Any] | None:
        """The next chunk, on the device."""
        # In the thread that reads, where gradients would always be recorded, and in every pass, of
        # which most record none: the caller's chunks must not depend on it.
        torch.set_grad_enabled(self.recorded)
        torch.cuda.set_stream(self.stream)  # type: ignore[arg-type]  # None changes nothing
        chunk = next(chunks, None)
        if chunk is None:
            return None
        x, *layout = chunk if isinstance(chunk, tuple | list) else (chunk,)
        x = _as_tensor(x)
        if x.requires_grad and self.recorded:
            raise ValueError(
                "a chunk requires grad, but gradients do not reach the chunks: pass the module "
                "that computes it as encoder=..., or call the layer itself"
            )
        given = (None if one is None else _as_tensor(one) for one in (*layout, None, None)[:2])
        return [one if one is None else one.to(self.device) for one in (x, *given)]


def _as_tensor(array: Any) -> Tensor:
    # A copy of an array: a file that is mapped to memory is read here.
    return normal(array) if isinstance(array, Tensor) else torch.tensor(array)


@torch.no_grad()
def _count(
    layer: EquilibriumAggregation, passes: Passes, encoder: nn.Module
) -> tuple[Tensor, Sets]:
    """Read all chunks once. Returns no elements, `[0, C]`, of their dtype, and their sets."""
    counts = torch.zeros(passes.num_sets, dtype=torch.long, device=passes.device)
    invalid = torch.zeros_like(counts, dtype=torch.bool)
    totals: Tensor | int = 0
    like = None
    for x, sets in passes:
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
        counts += sets.counts
        totals = totals + sets.totals
        invalid[sets.index[~torch.isfinite(encoded).all(-1)]] = True
    if like is None:
        raise ValueError("chunks is empty, expected one chunk or more")
    valid = ~invalid.unsqueeze(-1) if bool(invalid.any()) else None
    counts = torch.where(invalid, 0, counts)
    nothing = counts.new_empty(0)
    sets = Sets(nothing, counts, passes.num_sets, padded=False, blocks=None, valid=valid)
    if isinstance(totals, Tensor) and totals.is_floating_point():
        sets = replace(sets, weight=like.new_empty(0)).counted(counts, totals)
    return like, sets


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
        self.potential = potential
        self.encoder = encoder
        self.passes = passes

    def bind(self, x: Tensor, sets: Sets) -> ChunkedSum:
        """The sum over all chunks; there are no other elements."""
        return ChunkedSum(self, sets.valid)

    def of_chunk(self, x: Tensor, sets: Sets) -> SummedPotential:
        """The sum over one chunk."""
        return sum_over(self.potential, self.encoder(x), sets)

    def forward(  # type: ignore[override]
        self, method: Method, x: Tensor, sets: Sets, y: Tensor
    ) -> Tensor:
        """What one chunk adds, as a function of all that is trained by it."""
        summed = self.of_chunk(x, sets)
        return summed.value(y) if method == "value" else summed.gradient(y)


class ChunkedSum(SummedPotential):
    """The sum of the chunks' sums. Each evaluation reads all chunks, and so does its backward pass,
    which keeps nothing but y.

    Args:
        potential: of all chunks.
        valid: whether the elements of a set count, `[num_sets, 1]`; None if all do.
    """

    has_all = False

    def __init__(self, potential: ChunkedPotential, valid: Tensor | None) -> None:
        self.potential = potential
        self.passes = potential.passes
        self.valid = valid
        self.trainable = {n: p for n, p in potential.named_parameters() if p.requires_grad}
        device = self.passes.device.type
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
                torch.zeros_like(y),
                lambda x, sets: self.potential.of_chunk(x, sets).hessian(y)(direction),
            )

        return product

    def bounds(self) -> Bounds | None:
        """The sum of the chunks' bounds: valid, but wider than those of all elements at once."""
        lower = upper = torch.zeros(self.passes.num_sets, device=self.passes.device)
        with torch.no_grad():
            for x, sets in self.chunks():
                bounds = self.potential.of_chunk(x, sets).bounds()
                if bounds is None:
                    return None
                lower, upper = lower + bounds.lower, upper + bounds.upper
        return Bounds(lower, upper)

    def chunks(self) -> Iterator[tuple[Tensor, Sets]]:
        """The elements of each chunk and their sets; none that are empty. Elements of a set that is
        not valid are left out, as zero times NaN is NaN."""
        for x, sets in self.passes:
            if self.valid is not None:
                kept = self.valid.squeeze(-1)[sets.index]
                weight = None if sets.weight is None else sets.weight[kept]
                x, sets = without_padding(*gather_sets(
                    x[kept], sets.index[kept], dim_size=sets.num_sets, weight=weight
                ))  # fmt: skip
            if len(x):
                yield x, sets

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
                value = torch.func.functional_call(self.potential, own, (method, x, sets, point))
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
        zeros = y.new_zeros(y.shape[0]) if method == "value" else torch.zeros_like(y)
        return summed.total(zeros, lambda x, sets: summed.potential(method, x, sets, y))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        y, *_ = ctx.saved_tensors
        return None, None, *ctx.summed.derivatives(ctx.method, y, by)
