"""The layer as an aggregation of PyTorch Geometric."""

from __future__ import annotations

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


class EquilibriumAggregation(Aggregation):
    r"""`equipool.EquilibriumAggregation` with the call of a `torch_geometric.nn.aggr.Aggregation`:
    a readout, the `aggr` of a convolution, a part of a `MultiAggregation`.

    The arguments are those of `equipool.EquilibriumAggregation`, which is held as `layer`. The
    parts of that layer are read and replaced on this one too.

    Shapes:
        `x [*, N, C]` with `index [N]` in any order or `ptr [B + 1]` -> `[*, B, out_channels]`.
        The sets along further dimensions, such as attention heads, are independent of each other.
        The output of an empty set, such as the messages to a node without neighbours, is the start.

    Example:
        >>> from torch_geometric.nn import SAGEConv
        >>> readout = EquilibriumAggregation(in_channels=3, out_channels=8)
        >>> readout(torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])).shape
        torch.Size([2, 8])
        >>> conv = SAGEConv(3, 16, aggr=EquilibriumAggregation(3, 3))
        >>> conv(torch.randn(5, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([5, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        potential: nn.Module | None = None,
        regularizer: Regularizer | None = None,
        solver: Solver[Any] | None = None,
        differentiation: Differentiation | None = None,
        start: Start | None = None,
        num_steps: int = 10,
        scaling: ScalingName = "log",
        max_steps: int | None = None,
        tolerance: float = 1e-3,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.layer = aggregation.EquilibriumAggregation(
            in_channels,
            out_channels,
            potential=potential,
            regularizer=regularizer,
            solver=solver,
            differentiation=differentiation,
            start=start,
            num_steps=num_steps,
            scaling=scaling,
            max_steps=max_steps,
            tolerance=tolerance,
            check_finite=check_finite,
        )

    @property
    def in_channels(self) -> int:
        return self.layer.in_channels

    @property
    def out_channels(self) -> int:
        return self.layer.out_channels

    @property
    def potential(self) -> nn.Module:
        return self.layer.potential

    @property
    def regularizer(self) -> Regularizer:
        return self.layer.regularizer

    @property
    def solver(self) -> Solver[Any]:
        return self.layer.solver

    @property
    def differentiation(self) -> Differentiation:
        return self.layer.differentiation

    @property
    def start(self) -> Start:
        return self.layer.start

    @property
    def scaling(self) -> ScalingName:
        return self.layer.scaling

    @property
    def tolerance(self) -> float:
        return self.layer.tolerance

    @property
    def check_finite(self) -> bool:
        return self.layer.check_finite

    @property
    def num_steps(self) -> int:
        """Steps of the inner optimiser; train short and test long, if you like."""
        return self.layer.num_steps

    @num_steps.setter
    def num_steps(self, num_steps: int) -> None:
        self.layer.num_steps = num_steps

    @property
    def max_steps(self) -> int | None:
        """Steps at most where each set is solved to the tolerance; None to take `num_steps`."""
        return self.layer.max_steps

    @max_steps.setter
    def max_steps(self, max_steps: int | None) -> None:
        self.layer.max_steps = max_steps

    def __setattr__(self, name: str, value: Any) -> None:
        # A module set on a module is filed before any property is asked, and would be read by no
        # one here.
        if isinstance(getattr(type(self), name, None), property):
            setattr(self.layer, name, value)
        else:
            super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Draw the potential's parameters anew and return all others to where they started."""
        self.layer.reset_parameters()

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """Pool each set.

        Args:
            x: elements, `[*, N, C]`.
            index: the set of each element, `[N]`, in any order.
            ptr: where each set begins and ends, `[B + 1]`; where it is given, index is not read.
            dim_size: the number of sets, where some at the end may be empty.
            dim: the dimension of x that the elements lie along; the last one holds the channels.
            max_num_elements: not needed here, since nothing is padded.

        Returns:
            `[*, B, out_channels]`, with the sets in the place of the elements.
        """
        check_dim(x, dim)
        index, ptr = one_layout(index, ptr)
        if ptr is not None and dim_size == ptr.numel() - 1:
            dim_size = None  # the base class read it there: if it is wrong, then because of ptr
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
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        *,
        trajectory: bool = False,
    ) -> Solution:
        """Pool each set of `x [N, C]`, and say how well that went: see the layer's `solve`.

        Example:
            >>> solution = EquilibriumAggregation(3, 8).solve(torch.randn(5, 3))
            >>> solution.residual.shape, solution.converged.dtype
            (torch.Size([1]), torch.bool)
        """
        check_two_dimensional(x)
        index, ptr = one_layout(index, ptr)
        return self.layer.solve(x, index, ptr=ptr, dim_size=dim_size, trajectory=trajectory)

    def energy(
        self,
        x: Tensor,
        y: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        """Energy of each set of `x [N, C]` at `y [B, K]`, scaled as in the search: `[B]`."""
        check_two_dimensional(x)
        index, ptr = one_layout(index, ptr)
        return self.layer.energy(x, y, index, ptr=ptr, dim_size=dim_size)

    def __repr__(self) -> str:
        return repr(self.layer)


def one_layout(index: Tensor | None, ptr: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """`ptr` alone where there is one, since a convolution over sorted edges gives both, and `index`
    as a plain tensor: half of an `EdgeIndex` takes every operation through Python."""
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
