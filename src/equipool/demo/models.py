"""The two networks, which differ in how they pool and in nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from equipool import EquilibriumAggregation, LearnedStart, Nesterov, ResNetPotential
from equipool.demo.task import SET_SIZE


@dataclass(frozen=True)
class Sizes:
    """Sizes of both networks, smaller than the paper's so that a minute is enough."""

    width: int = 64
    channels: int = 8  # of the pooled vector
    potential_outputs: int = 8
    inner_steps: int = 3
    head_width: int = 128


class ResidualNetwork(nn.Module):
    """The residual network of `ResNetPotential`, for elements alone: `[..., C] -> [..., K]`."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(b) for _, b in pairs[:-1])
        self.skips = nn.ModuleList(nn.Identity() if a == b else nn.Linear(a, b) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for i, (linear, skip) in enumerate(zip(self.linears, self.skips, strict=True)):
            h = linear(x)
            if i < len(self.norms):
                h = torch.tanh(self.norms[i](h))
            x = skip(x) + h
        return x


class SumPooling(nn.Module):
    """Sum of the elements' embeddings times a constant, `[B, N, C] -> [B, K]`.

    A scale of 1 over the usual number of elements lets the sum start at the size of one embedding.
    The network behind it could learn the constant, but trains better where it is given.
    """

    def __init__(self, sizes: Sequence[int], scale: float) -> None:
        super().__init__()
        self.embed = ResidualNetwork(sizes)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.embed(x).sum(1)


class SetRegressor(nn.Module):
    """One number for each set: a pooling layer and two linear layers behind it,
    `[B, N, 1] -> [B]`."""

    def __init__(self, pooling: nn.Module, channels: int, head_width: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.head = nn.Sequential(
            nn.Linear(channels, head_width), nn.ReLU(), nn.Linear(head_width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(self.pooling(x))

    def predict(self, y: Tensor) -> Tensor:
        """The number read off a pooled vector, `[..., channels] -> [...]`."""
        return self.head(y).squeeze(-1)


def equilibrium_layer(sizes: Sizes) -> EquilibriumAggregation:
    """The layer as the demonstration trains it.

    Where x and y are both near zero, the potential's first normalisation magnifies them and the
    energy is steep. Gamma numbers are near zero, so the search starts away from it, and carefully.
    """
    hidden = (sizes.width, sizes.width, sizes.potential_outputs)
    return EquilibriumAggregation(
        1,
        sizes.channels,
        potential=ResNetPotential(1, sizes.channels, hidden=hidden),
        solver=Nesterov(learning_rate=0.02, momentum=0.5),
        start=LearnedStart(sizes.channels, value=1.0),
        num_steps=sizes.inner_steps,
    )


def equilibrium_network(sizes: Sizes) -> SetRegressor:
    return SetRegressor(equilibrium_layer(sizes), sizes.channels, sizes.head_width)


def sum_network(sizes: Sizes) -> SetRegressor:
    pooling = SumPooling((1, sizes.width, sizes.width, sizes.channels), scale=1 / SET_SIZE)
    return SetRegressor(pooling, sizes.channels, sizes.head_width)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
