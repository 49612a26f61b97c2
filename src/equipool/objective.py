"""What a solver sees of the energy it minimises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

LinearMap = Callable[[Tensor], Tensor]
"""`[num_rows, K] -> [num_rows, K]`, each row by itself."""


class Bounds(NamedTuple):
    """Between these lie the eigenvalues of each row's Hessian, whatever y is: `[num_rows]` each."""

    lower: Tensor
    upper: Tensor


def assemble(product: LinearMap, like: Tensor) -> Tensor:
    """The symmetric matrix `[num_rows, K, K]` of each row, from its products with the unit vectors:
    `product` maps `[num_rows, K]`, the shape of `like`, to itself. Rounding is evened out."""
    units = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    columns = [product(unit.expand_as(like).contiguous()) for unit in units]
    matrix = torch.stack(columns, dim=-1)
    return (matrix + matrix.mT) / 2


class Objective(Protocol):
    """A function of each row of `y [num_rows, K]`, a row being a set's output."""

    def value(self, y: Tensor) -> Tensor:
        """`[num_rows]`."""

    def gradient(self, y: Tensor) -> Tensor:
        """`[num_rows, K]`, differentiable."""

    def hessian(self, y: Tensor) -> LinearMap:
        """The product with the Hessian at y. Its result has no graph."""

    def bounds(self) -> Bounds | None:
        """Bounds of the curvature, where they are known."""

    def restrict(self, rows: Tensor) -> Objective:
        """The same for some of the rows alone, given by number, ascending."""
