"""What the trained layer does between the start and the end of its search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipool import EquilibriumAggregation
from equipool.demo.models import SetRegressor


@dataclass(frozen=True)
class Paths:
    """The search for the outputs of a few sets, continued beyond the trained number of steps."""

    trained_steps: int
    y: Tensor  # [S + 1, B, K] from the start to the end
    energy: Tensor  # [S + 1, B]

    @property
    def num_steps(self) -> int:
        return self.y.shape[0] - 1


@dataclass(frozen=True)
class Landscape:
    """The energy of one set on a plane through the end of its path."""

    horizontal: Tensor  # [G] coordinates
    vertical: Tensor  # [G]
    energy: Tensor  # [G, G], a row for each vertical coordinate
    path: Tensor  # [S + 1, 2] the path's foot on the plane
    trained_steps: int
    share: float  # of the path's squared distance from its end that lies in the plane


@torch.no_grad()
def follow(layer: EquilibriumAggregation, x: Tensor, num_steps: int) -> Paths:
    """Search the outputs of `x [B, N, C]` for `num_steps` steps, and keep the way."""
    trained_steps = layer.num_steps
    layer.num_steps = num_steps
    try:
        trajectory = layer.solve(x, trajectory=True).trajectory
    finally:
        layer.num_steps = trained_steps
    assert trajectory is not None
    energy = torch.stack([layer.energy(x, y) for y in trajectory])
    return Paths(trained_steps, trajectory, energy)


@torch.no_grad()
def error_along(network: SetRegressor, paths: Paths, target: Tensor) -> Tensor:
    """Mean squared error of the prediction read off after each inner step, `[S + 1]`."""
    return (network.predict(paths.y) - target).square().mean(-1)


@torch.no_grad()
def landscape(
    layer: EquilibriumAggregation, x: Tensor, path: Tensor, grid: int = 61, margin: float = 0.35
) -> Landscape:
    """Evaluate the energy of the set `x [N, C]` around its path `[S + 1, K]`.

    The plane goes through the end of the path and is spanned by the two directions in which the
    path is furthest from it (the right singular vectors of `y_t - y_S`).
    """
    end = path[-1]
    away = path - end
    directions = torch.linalg.svd(away, full_matrices=False).Vh[:2]
    foot = away @ directions.T
    low, high = _square(foot, margin)
    horizontal, vertical = (torch.linspace(float(low[i]), float(high[i]), grid) for i in (0, 1))
    across, up = torch.meshgrid(horizontal, vertical, indexing="xy")
    y = end + torch.stack([across, up], -1).flatten(0, 1) @ directions
    share = foot.square().sum() / away.square().sum().clamp(min=torch.finfo(away.dtype).tiny)
    return Landscape(
        horizontal, vertical, _energies(layer, x, y).view(grid, grid), foot,
        layer.num_steps, float(share),
    )  # fmt: skip


def _square(points: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Corners of the square around points `[S, 2]`, so that both axes have the same scale."""
    low, high = points.amin(0), points.amax(0)
    half = (0.5 + margin) * (high - low).max().clamp(min=1e-6)
    middle = (low + high) / 2
    return middle - half, middle + half


def _energies(layer: EquilibriumAggregation, x: Tensor, y: Tensor, chunk: int = 256) -> Tensor:
    """Energy of one set at many points, `[N, C]` and `[G, K] -> [G]`."""
    return torch.cat([layer.energy(x.expand(len(part), -1, -1), part) for part in y.split(chunk)])
