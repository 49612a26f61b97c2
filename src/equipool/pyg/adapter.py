"""The layer as an aggregation of PyTorch Geometric."""

from __future__ import annotations

from inspect import signature
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import Index
from torch_geometric.nn.aggr import Aggregation

from equipool import aggregation
from equipool.differentiation import Differentiation
from equipool.layouts import gather_sets
from equipool.regularizers import Regularizer
from equipool.scalings import ScalingName
from equipool.solution import Solution
from equipool.solvers import Solver
from equipool.starts import Start
from equipool.steps import Steps


class EquilibriumAggregation(Aggregation):
    r"""`equipool.EquilibriumAggregation` with the call of a `torch_geometric.nn.aggr.Aggregation`:
    a readout, the `aggr` of a convolution, a part of a `MultiAggregation`.

    The arguments are those of `equipool.EquilibriumAggregation`, which is stored as `layer`. Parts
    of that layer can be read and assigned here, too.

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

    layer: aggregation.EquilibriumAggregation

    def __init__(
        self, in_channels: int, out_channels: int, *, potential: nn.Module | None = None,
        regularizer: Regularizer | None = None, solver: Solver[Any] | None = None,
        differentiation: Differentiation | None = None, start: Start | None = None,
        steps: Steps | int | None = None, num_steps: int | None = None,
        scaling: ScalingName = "log", check_finite: bool = False, cuda_graphs: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layer = aggregation.EquilibriumAggregation(
            in_channels, out_channels, potential=potential, regularizer=regularizer, solver=solver,
            differentiation=differentiation, start=start, steps=steps, num_steps=num_steps,
            scaling=scaling, check_finite=check_finite, cuda_graphs=cuda_graphs,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name in FORWARDED:
            return getattr(self.layer, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FORWARDED:
            setattr(self.layer, name, value)
        else:
            super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Draw the potential's parameters again and reset all others to their initial values."""
        self.layer.reset_parameters()

    def forward(
        self, x: Tensor, index: Tensor | None = None, ptr: Tensor | None = None,
        dim_size: int | None = None, dim: int = -2, max_num_elements: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Pool each set.

        Args:
            x: elements, `[*, N, C]`.
            index: the set of each element, `[N]`, in any order.
            ptr: where each set begins and ends, `[B + 1]`; if given, index is not read.
            dim_size: the number of sets. Needed if sets at the end may be empty.
            dim: the dimension of x that holds the elements; the last one holds the channels.
            max_num_elements: ignored, since nothing is padded.

        Returns:
            `[*, B, out_channels]`, with the sets in the place of the elements.
        """
        check_dim(x, dim)
        index, ptr = one_layout(index, ptr)
        if ptr is not None and dim_size == ptr.numel() - 1:
            dim_size = None  # the base class read it from ptr, so that errors should name ptr
        if x.dim() == 2:
            return self.layer(x, index, ptr=ptr, dim_size=dim_size)
        return self._forward_each(x, index, ptr, dim_size, dim)

    def _forward_each(
        self, x: Tensor, index: Tensor | None, ptr: Tensor | None, dim_size: int | None, dim: int
    ) -> Tensor:
        """Pool over `dim`, separately along every dimension that is neither it nor the channels."""
        x = x.movedim(dim, 0)
        num_elements, *others, channels = x.shape
        rows, sets = gather_sets(x.flatten(1), index, ptr=ptr, dim_size=dim_size)
        copies = prod(others)
        copy = torch.arange(copies, device=x.device)
        y = self.layer(
            rows.reshape(num_elements * copies, channels),
            (sets.index.unsqueeze(-1) * copies + copy).flatten(),
            dim_size=sets.num_sets * copies,
        )
        return y.reshape(sets.num_sets, *others, self.out_channels).movedim(0, dim)

    def solve(
        self, x: Tensor, index: Tensor | None = None, ptr: Tensor | None = None,
        dim_size: int | None = None, *, trajectory: bool = False,
    ) -> Solution:  # fmt: skip
        """Pool each set of `x [N, C]` and report how the search went: see the layer's `solve`.

        Example:
            >>> solution = EquilibriumAggregation(3, 8).solve(torch.randn(5, 3))
            >>> solution.residual.shape, solution.converged.dtype
            (torch.Size([1]), torch.bool)
        """
        check_two_dimensional(x)
        index, ptr = one_layout(index, ptr)
        return self.layer.solve(x, index, ptr=ptr, dim_size=dim_size, trajectory=trajectory)

    def energy(
        self, x: Tensor, y: Tensor, index: Tensor | None = None, ptr: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Energy of each set of `x [N, C]` at `y [B, K]`, scaled as in the search: `[B]`."""
        check_two_dimensional(x)
        index, ptr = one_layout(index, ptr)
        return self.layer.energy(x, y, index, ptr=ptr, dim_size=dim_size)

    def __repr__(self) -> str:
        """One line, because convolutions print their aggregation within theirs; `layer` prints the
        parts."""
        return f"EquilibriumAggregation({self.in_channels}, {self.out_channels}, {self.steps!r})"


# Attributes of the layer that are read and assigned here, too.
FORWARDED = frozenset(signature(aggregation.EquilibriumAggregation).parameters)


def one_layout(index: Tensor | None, ptr: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
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


def check_two_dimensional(x: Tensor) -> None:
    if x.dim() != 2:
        raise ValueError(f"x has shape {list(x.shape)}, expected [N, C]")
