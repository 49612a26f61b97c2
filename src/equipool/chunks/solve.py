"""The layer's solve, for sets that are read chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import as_count, check_part
from equipool.chunks.passes import Passes
from equipool.chunks.summed import ChunkedSum, ChunkSum
from equipool.inference import outside_inference_mode
from equipool.potentials.base import check_no_dropout
from equipool.sets import Sets
from equipool.solution import Solution
from equipool.starts import check_start


def solve_chunks(
    layer: EquilibriumAggregation,
    chunks: Iterable[Any],
    *,
    num_sets: int = 1,
    encoder: nn.Module | None = None,
    trajectory: bool = False,
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
            `ArrayChunks`, `SafetensorsChunks`, `ParquetChunks`, or any object whose `__iter__`
            begins again.
        num_sets: the number of sets.
        encoder: applied to each chunk, `[n, D] -> [n, C]`, and trained with the layer. It must
            treat each element by itself.
        trajectory: whether to keep y from the start to the end of the search.
        diagnostics: whether to compute energy, residual and convergence, which reads the chunks
            twice more.

    Chunks receive no gradient. A search with `StronglyConvexNesterov` takes other steps to the same
    minimum, because it adds up the chunks' bounds. `Newton` reads all chunks once for each channel
    of y in every step.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> chunks = [torch.randn(1000, 3), torch.randn(500, 3)]
        >>> solution = equipool.solve_chunks(layer, chunks)
        >>> solution.y.sum().backward()
        >>> torch.allclose(solution.y, layer(torch.cat(chunks)), atol=1e-4)
        True
    """
    check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
    num_sets = as_count("num_sets", num_sets, least=1)
    _check_repeatable(layer, encoder)
    with outside_inference_mode():
        passes = Passes(chunks, num_sets, _device(layer, encoder))
        x, sets = _count(layer, passes, encoder)
        # Elements of a set that is not valid are left out, as zero times NaN is NaN.
        row_of = None
        if sets.valid is not None:
            rows = torch.arange(num_sets, device=x.device)
            row_of = torch.where(sets.valid.squeeze(-1), rows, -1)
        summed = ChunkedSum(ChunkSum(layer.potential, encoder), passes, num_sets, row_of)
        return layer.minimise(
            x, sets, summed=summed, trajectory=trajectory, diagnostics=diagnostics
        )


@torch.no_grad()
def _count(
    layer: EquilibriumAggregation, passes: Passes, encoder: nn.Module | None
) -> tuple[Tensor, Sets]:
    """Read all chunks once. Returns no elements, `[0, C]`, of their dtype, and their sets."""
    counts = torch.zeros(passes.num_sets, dtype=torch.long, device=passes.device)
    invalid = torch.zeros_like(counts, dtype=torch.bool)
    like = None
    for x, index in passes:
        if len(x) == 0:
            continue
        x = x if encoder is None else _encoded(encoder, x)
        layer.check_fits(x)
        like = x.new_empty(0, x.shape[1])  # not a view, which would keep the chunk in memory
        infinite = ~torch.isfinite(x).all(-1)
        if index is None:
            counts += len(x)
            invalid |= infinite.any()
        else:
            counts += torch.bincount(index, minlength=passes.num_sets)
            invalid[index[infinite]] = True
    if like is None:  # nothing but empty chunks
        parameter = next(layer.parameters(), passes.like)
        assert parameter is not None
        like = parameter.new_empty(0, layer.in_channels)
    valid = ~invalid.unsqueeze(-1) if bool(invalid.any()) else None
    counts = torch.where(invalid, 0, counts)
    nothing = counts.new_empty(0)
    return like, Sets(nothing, counts, passes.num_sets, padded=False, blocks=None, valid=valid)


def _encoded(encoder: nn.Module, x: Tensor) -> Tensor:
    encoded = encoder(x)
    if not isinstance(encoded, Tensor) or encoded.dim() != 2 or len(encoded) != len(x):
        found = list(encoded.shape) if isinstance(encoded, Tensor) else type(encoded).__name__
        raise ValueError(
            f"the encoder returned {found} for a chunk of {len(x)} elements, expected shape "
            f"[{len(x)}, C]"
        )
    return encoded


def _device(layer: EquilibriumAggregation, encoder: nn.Module | None) -> torch.device:
    modules = [layer] if encoder is None else [layer, encoder]
    tensors = chain.from_iterable(chain(m.parameters(), m.buffers()) for m in modules)
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _check_repeatable(layer: EquilibriumAggregation, encoder: nn.Module | None) -> None:
    """Every pass must compute the same energy."""
    check_start(layer.start, "chunks are not all at hand")
    parts = {"potential": layer.potential}
    if encoder is not None:
        check_part("encoder", encoder, nn.Module, "torch.nn.Linear(3, 8)")
        parts["encoder"] = encoder
    for name, part in parts.items():
        check_no_dropout(name, part, "every pass over the chunks would draw other units")
        for module in part.modules():
            if module.training and isinstance(module, _BatchNorm):
                raise ValueError(
                    f"the {name} has {module} in training mode, which uses the mean of a chunk, "
                    "not of the whole: call its eval() or leave it out"
                )
