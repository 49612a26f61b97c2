"""`locate` in torch operations: the fallback, the oracle, and what is compiled, exported and
differentiated twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipool.ops.execution import values_decide
from equipool.ops.segments import block_sum, blocks_are_wanted, make_blocks, segment_sum


def _sum(values: Tensor, index: Tensor, rows: int) -> Tensor:
    if blocks_are_wanted(index.shape[0]):
        return block_sum(values, make_blocks(index, rows), rows)
    return segment_sum(values, index, rows)


def _least(values: Tensor, index: Tensor, rows: int) -> Tensor:
    """The smallest element of each set; infinity for an empty one."""
    index = index.view(-1, *(1 for _ in values.shape[1:])).expand_as(values)
    found = values.new_full((rows, *values.shape[1:]), torch.inf)
    return found.scatter_reduce(0, index, values, "amin")


def heads_of(weight: Tensor, features: int) -> Tensor:
    """The head of each feature, `[F]`."""
    return torch.arange(features, device=weight.device) * weight.shape[1] // features


def _weights(x: Tensor, index: Tensor, counts: Tensor, weight: Tensor | None) -> Tensor:
    """`[N, 1, F]`, 0 in rows that count as empty."""
    present = (counts > 0)[index].unsqueeze(-1).to(x.dtype)
    if weight is not None:
        present = present * weight.index_select(1, heads_of(weight, x.shape[1]))
    return present.unsqueeze(1).expand(-1, 1, x.shape[1])


def _rows(
    x: Tensor, index: Tensor, weights: Tensor, delta: Tensor, ridge: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each set: the smallest and the largest element, its total weight, and the widths: a
    larger one gives the same minimum up to rounding."""
    values, total = x.unsqueeze(1), _sum(weights, index, rows)
    low = _least(torch.where(weights > 0, values, torch.inf), index, rows)
    high = -_least(torch.where(weights > 0, -values, torch.inf), index, rows)
    spread = high - low
    if ridge is not None:
        low = torch.where(ridge > 0, low.clamp(max=0), low)
        high = torch.where(ridge > 0, high.clamp(min=0), high)
        return low, high, total, delta.expand(rows, -1, -1)
    cap = torch.where(spread > 0, spread * (1e9 if x.dtype == torch.float64 else 1e4), 1)
    return low, high, total, torch.minimum(delta, cap)


@torch.no_grad()
def solve(
    x: Tensor, index: Tensor, counts: Tensor, tau: Tensor, delta: Tensor, weight: Tensor | None,
    ridge: Tensor | None, max_passes: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Safeguarded Newton steps from the mean; y, its error bound and each set's passes."""
    rows, exact = counts.shape[0], 1e-7 if x.dtype == torch.float64 else 1.0
    weights = _weights(x, index, counts, weight)
    low, high, total, delta = _rows(x, index, weights, delta, ridge, rows)
    spread = (high - low).expand_as(delta)
    mean = _sum(weights * x.unsqueeze(1), index, rows) / total
    y = torch.maximum(torch.minimum(mean, high), low).expand_as(delta)
    going = (total > 0) & (spread < torch.inf) & mean.isfinite()
    y = torch.where(going, y, torch.where(total > 0, torch.nan, 0))
    error = torch.where(total > 0, torch.inf, torch.zeros_like(y))
    left, right, before, last, wide = low, high, spread, spread, delta >= spread
    coarse = (tau * 4096).round() / 4096  # times a count, exact in float32
    passes = torch.zeros_like(counts)
    for _ in range(max_passes):
        if values_decide(x) and not bool(going.any()):
            break
        passes = passes + going.flatten(1).any(-1)
        u = x.unsqueeze(1) - y[index]
        s = u.abs() / delta[index]
        r = (1 + s * s).rsqrt()
        c = weights * torch.where(u > 0, tau, 1 - tau)
        part = torch.where(wide[index], s * r, -r * r / (1 + s * r)) * c
        below = _sum(torch.where(u > 0, 0, weights), index, rows)
        slope = _sum(torch.where(u > 0, part, -part), index, rows)
        counted = (coarse * total - below) + (tau - coarse) * total
        slope = slope + torch.where(wide, 0, counted)
        curvature = _sum(c * r.pow(3), index, rows) / delta
        if ridge is not None:
            slope, curvature = slope - ridge * y, curvature + ridge
        local = (tau * (total - below) + (1 - tau) * below) / curvature
        tolerance = exact * (1e-6 * torch.minimum(spread, local) + 1.2e-7 * y.abs())
        left, right = torch.where(slope > 0, y, left), torch.where(slope > 0, right, y)
        step = slope / curvature
        z, size = y + step, step.abs()
        after = 1.1 * size * size / delta  # the error after this step, if it crosses no element
        smooth = (after <= tolerance) & (size <= 0.1 * delta)
        smooth = smooth & (size <= 0.5 * _least(u.abs(), index, rows))
        newton = smooth | (size <= tolerance)
        final = newton | (right - left <= tolerance)
        newton = newton | ((z > left) & (z < right) & (size <= 0.5 * before))
        z = torch.where(going, torch.where(newton, z, (left + right) / 2), y)
        after = torch.where(smooth, after, size) + exact * 1.2e-7 * z.abs()
        error = torch.where(going & final, after, error)
        before, last, y, going = last, (z - y).abs(), z, going & ~final
    return y, error, passes


def adjoint(
    by_y: Tensor, saved: Sequence[Any], floor: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Cotangents of x, tau, delta, weight and ridge, given that of y. Differentiable, with y as a
    function of the others."""
    x, index, counts, tau, delta, weight, ridge, y = saved
    rows = counts.shape[0]
    weights = _weights(x, index, counts, weight)
    low, high, total, width = _rows(x, index, weights, delta, ridge, rows)
    valid = (total > 0) & y.isfinite()
    by_y, y = torch.where(valid, by_y, 0), torch.where(valid, y, 0)
    u = torch.where(valid[index], x.unsqueeze(1) - y[index], 0)
    s, side = u / width[index], torch.where(u > 0, tau, 1 - tau)
    r = (1 + s * s).rsqrt()
    bend = weights * side * r.pow(3)
    curvature = _sum(bend, index, rows) / width
    if ridge is not None:
        curvature = curvature + ridge
    curvature = torch.where(valid, curvature, 1)
    least = floor * _sum(weights * side, index, rows) / torch.maximum(high - low, width)
    least = torch.where(valid, least, 0).detach()
    per_slope, floored = by_y / curvature, by_y / torch.maximum(curvature, least)
    by_s = bend * (per_slope / width)[index]
    pulled = _sum(weights * s.abs() * r, index, rows)
    by_weight = None
    if weight is not None:
        of_features = (side * s * r * floored[index]).sum(1)
        by_weight = torch.zeros_like(weight).index_add(1, heads_of(weight, x.shape[1]), of_features)
    by_ridge = None if ridge is None else -y * per_slope
    by_delta = -_sum(by_s * s, index, rows).sum(0)
    return by_s.sum(1), (pulled * floored).sum(0), by_delta, by_weight, by_ridge
