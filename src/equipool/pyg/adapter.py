"""The layer as an aggregation of PyTorch Geometric."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch_geometric import Index
from torch_geometric.nn.aggr import Aggregation

from equipool import aggregation
from equipool.sets import FLOATS, Sets, check_like, gather_sets


class Adapter(nn.Module):
    """The call of PyTorch Geometric for a pooling with that of the layer."""

    out_channels: int

    # The base class would read the number of sets from the device, and knows neither mask nor Sets.
    __call__ = nn.Module.__call__

    def forward(
        self, x: Tensor, index: Tensor | Sets | None = None, ptr: Tensor | None = None,
        dim_size: SupportsIndex | None = None, dim: int = -2, max_num_elements: int | None = None,
        *, mask: Tensor | None = None, weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Pool each set.

        Args:
            x: elements, `[*, N, C]`; with a mask, `[B, L, C]`; or a jagged nested tensor.
            index: the set of each element, `[N]`, in any order; or `Sets`.
            ptr: where each set begins and ends, `[B + 1]`; if given, index is not read.
            dim_size: the number of sets. Needed if sets at the end may be empty.
            dim: the dimension of x that holds the elements; the last one holds the channels.
            max_num_elements: ignored, since nothing is padded.
            mask: True for real elements: `[B, L]` with a padded x.
            weight: weights of the elements, `[N]`, or as in `equipool.EquilibriumAggregation`. A
                convolution passes none to its `aggr`.

        Returns:
            `[*, B, out_channels]`, with the sets in the place of the elements.
        """
        pool: Callable[..., Tensor] = super().forward
        if mask is not None or x.is_nested:
            index, ptr = only_ptr(index, ptr)
            return pool(x, index, ptr=ptr, mask=mask, dim_size=dim_size, weight=weight)
        check_dim(x, dim)
        index, ptr, dim_size = one_layout(x, dim, index, ptr, dim_size)
        if x.dim() == 2:
            return pool(x, index, ptr=ptr, dim_size=dim_size, weight=weight)
        return self._forward_each(pool, x, index, ptr, dim_size, dim, weight)

    def _forward_each(
        self, pool: Callable[..., Tensor], x: Tensor, index: Tensor | Sets | None,
        ptr: Tensor | None, dim_size: SupportsIndex | None, dim: int, weight: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Pool over `dim`, separately along every dimension that is neither it nor the channels."""
        x = x.movedim(dim, 0)
        num_elements, *others, channels = x.shape
        rows, copies = x.flatten(1), prod(others)
        if weight is not None:  # a channel more, to be sorted with x
            check_like("weight", weight, x, x.shape[:1], FLOATS)
            rows = torch.cat([rows, weight.unsqueeze(-1)], -1)
        rows, sets = gather_sets(rows, index, ptr=ptr, dim_size=dim_size)
        if weight is not None:
            rows, weight = rows[:, :-1].to(x.dtype), rows[:, -1].repeat_interleave(copies)
        copy = torch.arange(copies, device=x.device)
        y = pool(
            rows.reshape(num_elements * copies, channels),
            (sets.index.unsqueeze(-1) * copies + copy).flatten(),
            dim_size=sets.num_sets * copies,
            weight=weight,
        )
        return y.reshape(sets.num_sets, *others, self.out_channels).movedim(0, dim)

    def __repr__(self) -> str:
        """One line, because convolutions print their aggregation within theirs."""
        return f"{type(self).__name__}({self.extra_repr()})"


class EquilibriumAggregation(Adapter, aggregation.EquilibriumAggregation, Aggregation):
    r"""`equipool.EquilibriumAggregation` that is a `torch_geometric.nn.aggr.Aggregation` as well:
    a readout, the `aggr` of a convolution, a part of a `MultiAggregation`.

    Arguments, parts, `solve`, `energy` and state are those of `equipool.EquilibriumAggregation`.
    Only the call differs: `ptr`, `dim_size` and `dim` may be positional, and further dimensions are
    allowed.

    Shapes:
        `x [*, N, C]` with `index [N]` in any order or `ptr [B + 1]` -> `[*, B, out_channels]`.
        Sets along further dimensions, such as attention heads, are independent of each other. The
        output of an empty set, such as the messages to a node without neighbours, is the start.

    Example:
        >>> from torch_geometric.nn import SAGEConv
        >>> readout = EquilibriumAggregation(in_channels=3, out_channels=8)
        >>> readout(torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])).shape
        torch.Size([2, 8])
        >>> conv = SAGEConv(3, 16, aggr=EquilibriumAggregation(3, 3))
        >>> conv(torch.randn(5, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([5, 16])
    """

    def _gather(self, x: Tensor, index: Tensor | Sets | None, **layout: Any) -> tuple[Tensor, Sets]:
        index, layout["ptr"] = only_ptr(index, layout["ptr"])
        return super()._gather(x, index, **layout)


def one_layout(
    x: Tensor, dim: int, index: Tensor | Sets | None, ptr: Tensor | None,
    dim_size: SupportsIndex | None,
) -> tuple[Tensor | Sets | None, Tensor | None, SupportsIndex | None]:  # fmt: skip
    """As `only_ptr`; of elements without a set, one set if there are any."""
    if index is None and ptr is None:
        index = torch.zeros(x.shape[dim], dtype=torch.long, device=x.device)
        dim_size = min(x.shape[dim], 1) if dim_size is None else dim_size
    return *only_ptr(index, ptr), dim_size


def only_ptr(
    index: Tensor | Sets | None, ptr: Tensor | None
) -> tuple[Tensor | Sets | None, Tensor | None]:
    """`ptr` alone if given, since a convolution over sorted edges gives both; otherwise `index` as
    a plain tensor, since operations on a row of an `EdgeIndex` run through Python."""
    if ptr is not None:
        return None, ptr
    return (index.as_tensor() if isinstance(index, Index) else index), None


def check_dim(x: Tensor, dim: int) -> None:
    if x.dim() < 2:
        raise ValueError(f"x has shape {list(x.shape)}, expected [*, N, C]")
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise ValueError(
            f"dim is {dim} and x has shape {list(x.shape)}, expected a dimension of x other than "
            "its last, which holds the channels"
        )
