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


def separable_minimum(
    objective: Objective, start: Tensor, occupied: Tensor, max_passes: int
) -> Minimum:
    """The minimum of a convex objective whose components are independent, from its gradient and
    Hessian alone: Newton steps between bounds, which widen until they hold it. In float64, as the
    gradient may be nearly flat.

    Args:
        start: where to begin, `[num_rows, K]`.
        occupied: which rows have an energy, `[num_rows, 1]`.
        max_passes: how often gradient and Hessian may be taken.
    """
    y = start.detach().double()
    left, right = torch.full_like(y, -torch.inf), torch.full_like(y, torch.inf)
    error = torch.where(occupied, torch.inf, torch.zeros_like(y))
    before = last = right
    reach, farthest, passes = 1.0, torch.zeros_like(y), torch.zeros_like(y[:, 0], dtype=torch.long)
    curvature = torch.ones_like(y)
    with torch.no_grad():
        for _ in range(max_passes):
            going = error == torch.inf
            if not bool(going.any()):
                break
            slope = objective.gradient(y)
            curvature = objective.hessian(y)(torch.ones_like(y))
            left, right = torch.where(slope < 0, y, left), torch.where(slope < 0, right, y)
            step = -slope / curvature
            bounded = torch.isfinite(right - left)
            inside = (y + step >= left) & (y + step <= right)
            inside &= step.abs() <= torch.where(bounded, 0.5 * before, reach)
            other = torch.where(bounded, (left + right) / 2 - y, -slope.sign() * reach)
            step = torch.where(slope == 0, 0, torch.where(inside, step, other))
            step = torch.where(going, step, 0)
            y, reach, before, last = y + step, 4 * reach, last, step.abs()
            farthest, passes = torch.maximum(farthest, last), passes + going.any(-1)
            final = going & (last <= 1e-12 * torch.maximum(farthest, y.abs()))
            bound = last + torch.finfo(start.dtype).eps * y.abs()
            error = torch.where(final, bound, error)
    if torch.is_grad_enabled():  # of the implicit function
        slope = objective.gradient(y) / torch.where(occupied, curvature, 1)
        y = y - (slope - slope.detach())
    y = torch.where(occupied, y.to(start.dtype), start)
    return Minimum(y, error.amax(-1), passes)


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
