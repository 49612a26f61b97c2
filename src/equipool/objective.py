"""What a solver sees of the energy that it minimises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

LinearMap = Callable[[Tensor], Tensor]
"""A linear map `[num_rows, K] -> [num_rows, K]` of each row by itself."""


class Bounds(NamedTuple):
    """Bounds of the eigenvalues of each row's Hessian over all y, `[num_rows]` each."""

    lower: Tensor
    upper: Tensor


class Minimum(NamedTuple):
    """The minimum of each row, found without a solver."""

    y: Tensor  # [num_rows, K], differentiable
    error: Tensor  # [num_rows] bound of every component's error; infinite if it was not reached
    passes: Tensor  # [num_rows] how often the elements were read


def assemble(product: LinearMap, like: Tensor) -> Tensor:
    """The symmetric matrix `[num_rows, K, K]` of each row, from its products with the unit vectors:
    `product` maps `[num_rows, K]`, the shape of `like`, to itself. Rounding is symmetrised."""
    units = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    columns = [product(unit.expand_as(like).contiguous()) for unit in units]
    matrix = torch.stack(columns, dim=-1)
    return (matrix + matrix.mT) / 2


class Objective(Protocol):
    """What a solver minimises: a function of each row of `y [num_rows, K]`, where a row is the
    output of a set."""

    def value(self, y: Tensor) -> Tensor:
        """`[num_rows]`."""

    def gradient(self, y: Tensor) -> Tensor:
        """`[num_rows, K]`, differentiable."""

    def hessian(self, y: Tensor) -> LinearMap:
        """The product with the Hessian at y. Its result has no graph."""

    def bounds(self) -> Bounds | None:
        """Bounds of the curvature, or None if they are not known."""

    def restrict(self, rows: Tensor) -> Objective | None:
        """The same for some rows alone, given by ascending numbers, or None if not available."""

    def minimum(self, start: Tensor, max_passes: int) -> Minimum:
        """The minimum itself, if the objective knows it; an empty row is that of the start."""
