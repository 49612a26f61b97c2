"""Exact statistics of sets, differentiable, with weights and in every layout.

Every function takes `x`, its sets and `weight` as `EquilibriumAggregation` does. The output of an
empty set, or one without weight, is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex

import torch
from torch import Tensor

from equipool.ops.location import locate
from equipool.ops.selection import select
from equipool.sets import Sets, gather_sets

Index = Tensor | Sets | None
TINY = 1e-30  # the weight that the smallest element has to exceed
SHORT_OF = 1 - 1e-6  # sums of weights are rounded
ROUND = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}
INTERPOLATIONS = ("linear", *ROUND, "midpoint")


class _Batch(NamedTuple):
    """Elements in set order, with their weights."""

    x: Tensor  # [N, C]
    sets: Sets
    weight: Tensor | None  # [N, 1]
    total: Tensor  # [num_rows, 1, 1] number or weight of elements

    def select(self, targets: Tensor) -> Tensor:
        """`[num_rows, R, C or 1] -> [B, R, C]`; sets without weight give 0."""
        found = select(self.x, self.sets.index, self.sets.counts, targets, self.weight)
        return self.sets.real(torch.where(self.total > 0, found, 0))


def _gather(
    x: Tensor, index: Index, ptr: Tensor | None, mask: Tensor | None,
    dim_size: SupportsIndex | None, weight: Tensor | None,
) -> _Batch:  # fmt: skip
    x, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size, weight=weight)
    found = None if sets.weight is None else sets.weight.unsqueeze(-1)
    return _Batch(x, sets, found, sets.totals.detach().view(-1, 1, 1))


def median(
    x: Tensor, index: Index = None, *, ptr: Tensor | None = None, mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The median of each channel, `[B, C]`; of an even number the lower middle one, as
    `torch.median`. NaN if the set has one. The gradient goes to the first element of the set that
    equals it.

    Example:
        >>> equipool.functional.median(torch.tensor([[3.0], [1.0], [2.0], [9.0]]))
        tensor([[2.]])
    """
    batch = _gather(x, index, ptr, mask, dim_size, weight)
    if batch.weight is None:
        return batch.select((batch.total + 1) // 2)[:, 0]
    return batch.select((0.5 * SHORT_OF * batch.total).clamp(min=TINY))[:, 0]


def quantile(
    x: Tensor, q: float | Sequence[float], index: Index = None, *, ptr: Tensor | None = None,
    mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None, interpolation: str = "linear",
) -> Tensor:  # fmt: skip
    """Quantiles of each channel, `[B, C]`, or `[B, R, C]` for several levels. Interpolated between
    elements as in `torch.quantile`; with a weight instead the smallest element up to which the
    elements have at least q of the weight, whatever the interpolation. Gradients as for `median`.

    Example:
        >>> equipool.functional.quantile(torch.tensor([[0.0], [1.0], [2.0]]), [0.25, 1.0])
        tensor([[[0.5000],
                 [2.0000]]])
    """
    batch = _gather(x, index, ptr, mask, dim_size, weight)
    dtype = torch.promote_types(x.dtype, torch.float32)
    levels = torch.tensor([q] if isinstance(q, float | int) else q, dtype=dtype)
    if levels.numel() == 0 or not bool(((levels >= 0) & (levels <= 1)).all()):
        raise ValueError(f"q is {q!r}, expected levels from 0 to 1")
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation is {interpolation!r}, expected one of {INTERPOLATIONS}")
    levels = levels.to(x.device).view(-1, 1)
    if batch.weight is not None:
        found = batch.select((levels * SHORT_OF * batch.total).clamp(min=TINY))
    else:
        rank = levels * (batch.total - 1).clamp(min=0)
        rank = ROUND.get(interpolation, torch.clone)(rank)
        below = rank.floor()
        both = torch.stack([below, rank.ceil()], 2).flatten(1, 2).long() + 1
        lower, upper = batch.select(both).unflatten(1, (-1, 2)).unbind(2)
        share = torch.full_like(rank, 0.5) if interpolation == "midpoint" else rank - below
        found = torch.lerp(lower, upper, batch.sets.real(share).to(x.dtype))
    return found[:, 0] if isinstance(q, float | int) else found


def max(
    x: Tensor, index: Index = None, *, ptr: Tensor | None = None, mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The maximum of each channel over the elements of positive weight, `[B, C]`. NaN and
    gradients as for `median`.

    Example:
        >>> equipool.functional.max(torch.tensor([[3.0], [5.0]]), weight=torch.tensor([1.0, 0.0]))
        tensor([[3.]])
    """
    batch = _gather(x, index, ptr, mask, dim_size, weight)
    return batch._replace(weight=None).select(batch.sets.counts.view(-1, 1, 1))[:, 0]


def expectile(
    x: Tensor, tau: float | Tensor, index: Index = None, *, ptr: Tensor | None = None,
    mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    r"""The `tau`-expectile of each channel, `[B, C]`: the y that minimises
    $\sum_i |\tau - 1(x_i < y)| (x_i - y)^2$. 1/2 is the mean, 1 the limit of the maximum.

    Example:
        >>> equipool.functional.expectile(torch.tensor([[0.0], [1.0]]), 0.75)
        tensor([[0.7500]])
    """
    x, sets, weight, _ = _gather(x, index, ptr, mask, dim_size, weight)
    row = torch.ones(
        1, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32), device=x.device
    )
    located = locate(x, sets.index, sets.counts, tau * row, torch.inf * row, weight)
    return sets.real(located.y[:, 0]).to(x.dtype)


def mean(
    x: Tensor, index: Index = None, *, ptr: Tensor | None = None, mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each channel, `[B, C]`: the expectile of 1/2.

    Example:
        >>> equipool.functional.mean(torch.tensor([[1.0], [2.0], [6.0]]))
        tensor([[3.]])
    """
    return expectile(x, 0.5, index, ptr=ptr, mask=mask, dim_size=dim_size, weight=weight)
