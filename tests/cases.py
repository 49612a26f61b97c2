"""Layers and batches that the tests share, and how close is close."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipool import EquilibriumAggregation, Nesterov, ResNetPotential, SquaredNorm
from equipool.sets import Sets
from equipool.starts import Start

SCALINGS = ("log", "log-mean", "sum", "mean")


def make_layer(
    in_channels: int = 3, out_channels: int = 4, hidden: Sequence[int] | None = (7, 5, 3), *,
    dtype: torch.dtype = torch.float64, scaling: Any = "log", reduction: Any = "mean",
    factored: bool = True, num_steps: int = 6, learning_rate: float = 0.05, momentum: float = 0.7,
    gtol: float = 0.0, clip_value: float | None = None, start: Start | None = None, seed: int = 0,
) -> EquilibriumAggregation:  # fmt: skip
    """A layer in which no parameter has a special value, biases and norms included."""
    torch.manual_seed(seed)
    layer = EquilibriumAggregation(
        in_channels, out_channels,
        potential=ResNetPotential(in_channels, out_channels, hidden, reduction, factored),
        regularizer=SquaredNorm(0.3),
        solver=Nesterov(learning_rate, momentum, gtol=gtol, clip_value=clip_value),
        start=start, steps=num_steps, scaling=scaling,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer.to(dtype)


def make_sets(
    sizes: Sequence[int], channels: int = 3, dtype: torch.dtype = torch.float64, seed: int = 1
) -> list[Tensor]:
    """One `[n, channels]` set for each size, the same for the same seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return [torch.randn(n, channels, dtype=torch.float64).to(dtype) for n in sizes]


def flatten(sets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Elements `[N, C]` and their `index`, set by set."""
    sizes = torch.tensor([len(x) for x in sets], dtype=torch.long)
    return torch.cat(list(sets)), torch.arange(len(sets)).repeat_interleave(sizes)


def offsets(sets: Sequence[Tensor]) -> Tensor:
    """`ptr` of the sets laid end to end."""
    return torch.tensor([0, *(len(x) for x in sets)]).cumsum(0)


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal to within the tolerance, relative to the largest value where that exceeds 1."""
    assert found.shape == expected.shape
    if expected.numel() == 0:
        return
    scale = max(1.0, float(expected.detach().abs().max()))
    difference = float((found - expected).detach().abs().max())
    assert difference <= tolerance * scale, f"differ by {difference:.3g} at scale {scale:.3g}"


def first_seed(suits: Callable[[int], bool], start: int = 0) -> int:
    """The first of the seeds `start`, `start + 1`, ... whose case suits a test, which may presume
    that a search converges, say. So the test does not depend on the seed that it starts with."""
    return next(seed for seed in range(start, start + 100) if suits(seed))


class SumStart(Start):
    """A start that reads the elements."""

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        return sets.sum(x)


class Quadratic(nn.Module):
    """A user's own potential, not derived from anything of ours: the mean minimises its sum."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x - y).square().sum(-1)
