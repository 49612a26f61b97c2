"""The change of the minimum by one Newton step, for all removals of all sets at once."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.energy import Energy, Weights, scaling_weights
from equipool.leave_one_out.removals import Removals
from equipool.linear_solvers import ROUNDINGS, Cholesky, ConjugateGradients, LinearSolver

# Up to this output size the matrix of every removal is assembled and factored, which finds every
# negative curvature; beyond it a few products per removal solve the same system.
SMALL_OUTPUT = 8

# Numbers that a block of removals may take, and what an element takes beside its matrix.
FLOATS_AT_ONCE = 1 << 22
FLOATS_PER_ELEMENT = 64
TILE = 16  # rows that are multiplied by the matrix of their set together


def newton_changes(
    layer: EquilibriumAggregation, removals: Removals, y: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The change `[P, K]` of each set's minimum by the removal, and whether it is known, `[P]`.
    Where not, the change is NaN.

    With $\rho = a / w$, the ratio of the scaling's weights, a set's energy is
    $w (\rho R + \sum F)$, and $w$ does not change the minimum. Without the removal $p$ the gradient
    loses $\delta \nabla R + g_p$ and the Hessian $D_p = \delta H_R + H_p$, where $\delta$ is the
    loss of $\rho$. The Newton steps of both energies from y differ by

    $$(H - D_p)^{-1} (\delta \nabla R + g_p - D_p H^{-1} r),$$

    where $r$ is the gradient of the whole set that the search left. With $H = L L^\top$ the system
    is solved in the coordinates $L^\top v$, where its matrix is $I - L^{-1} D_p L^{-\top}$: close
    to the identity if no removal dominates its set.
    """
    small = y.shape[-1] <= SMALL_OUTPUT
    solver: LinearSolver = Cholesky() if small else ConjugateGradients(tolerance=1e-5)
    ratio = _ratio(layer, removals.sets.totals)
    whole = _weighted(layer.energy(removals.x, removals.sets), ratio.to(y.dtype))
    inverse_root, definite = _inverse_root(whole.hessian(y))
    step = -_times(_times(whole.gradient(y), inverse_root.mT), inverse_root)
    lost_ratio = (ratio[removals.set_of] - _ratio(layer, removals.left_weight)).to(y.dtype)
    lost_ratio = torch.where((removals.left == 0).unsqueeze(-1), 0, lost_ratio)
    per_removal = y.shape[-1] * (y.shape[-1] if small else TILE)
    costs = per_removal + FLOATS_PER_ELEMENT * removals.sizes
    changes, solved = [y.new_zeros(0, y.shape[-1])], [definite[:0]]
    for start, stop in removals.blocks(costs, FLOATS_AT_ONCE):
        set_of = removals.set_of[start:stop]
        removed = _weighted(layer.energy(*removals.alone(start, stop)), lost_ratio[start:stop])
        change, known = _changes_of(removed, y[set_of], step[set_of], inverse_root, set_of, solver)
        known = known & definite[set_of]
        changes.append(torch.where(known.unsqueeze(-1), -change, torch.nan))
        solved.append(known)
    return torch.cat(changes), torch.cat(solved)


def _changes_of(
    removed: Energy, y: Tensor, step: Tensor, inverse_root: Tensor, set_of: Tensor,
    solver: LinearSolver,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The Newton steps of some removals, given the energy that is lost; all else but the inverse
    roots has a row per removal."""
    tiles, lost = Tiles(set_of), removed.hessian_map(y)

    def product(v: Tensor) -> Tensor:
        return v - tiles.times(lost(tiles.times(v, inverse_root)), inverse_root.mT)

    solution = solver(product, tiles.times(removed.gradient(y) + lost(step), inverse_root.mT))
    return tiles.times(solution.x, inverse_root), solution.solved


def _weighted(energy: Energy, ratio: Tensor) -> Energy:
    r"""$\rho R + \sum F$, given $\rho$, `[B, 1]`."""
    return energy.reweighted(Weights(ratio, torch.ones_like(ratio)))


def _ratio(layer: EquilibriumAggregation, totals: Tensor) -> Tensor:
    """The weight of the regulariser over that of the potential, `[B, 1]`; 1 for empty sets. In
    float64: the ratios of a large set with and without an element differ in their last digits."""
    weights = scaling_weights(layer.scaling, totals, torch.float64)
    return torch.where(totals.unsqueeze(-1) > 0, weights.regularizer / weights.potential, 1)


def _inverse_root(matrix: Tensor) -> tuple[Tensor, Tensor]:
    r"""$L^{-1}$ of each matrix $L L^\top$, `[B, K, K]`, and whether it is positive definite beyond
    rounding, `[B]`. The identity elsewhere."""
    factor, failure = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal(dim1=-2, dim2=-1).square()
    rounding = ROUNDINGS * torch.finfo(matrix.dtype).eps
    definite = (failure == 0) & (pivots.amin(-1) > rounding * pivots.amax(-1))
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor = torch.where(definite.view(-1, 1, 1), factor, identity)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False), definite


def _times(rows: Tensor, matrices: Tensor) -> Tensor:
    """Each row times its own matrix: `[B, K]`, `[B, K, K]` -> `[B, K]`."""
    return torch.linalg.vecdot(rows.unsqueeze(-1), matrices, dim=-2)


class Tiles:
    """Multiplies rows by the matrices of their sets, some rows of a set at a time, without a copy
    of the matrix for each row. `set_of [P]` ascends."""

    def __init__(self, set_of: Tensor) -> None:
        sets, counts = torch.unique_consecutive(set_of, return_counts=True)
        num_tiles = (counts + TILE - 1) // TILE
        first = num_tiles.cumsum(0) - num_tiles
        begin = counts.cumsum(0) - counts
        position = torch.arange(set_of.shape[0], device=set_of.device)
        slot = TILE * first - begin
        self.slots = position + slot.repeat_interleave(counts)
        self.set_of_tile = sets.repeat_interleave(num_tiles)

    def times(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """`rows [P, K]`, `matrices [B, K, K]` -> `[P, K]`."""
        channels = rows.shape[-1]
        dense = rows.new_zeros(TILE * self.set_of_tile.shape[0], channels)
        dense[self.slots] = rows
        found = dense.view(-1, TILE, channels) @ matrices[self.set_of_tile]
        return found.view(-1, channels)[self.slots]
