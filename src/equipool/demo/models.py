"""The two networks, which differ in how they pool and in nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from equipool import EquilibriumAggregation, LearnedStart, Nesterov, ResNetPotential
from equipool.baselines import SumPooling
from equipool.demo.task import SET_SIZE
from equipool.experiments.residual import ResidualNetwork


@dataclass(frozen=True)
class Sizes:
    """Sizes of both networks, smaller than the paper's so that a minute is enough."""

    width: int = 64
    channels: int = 8  # of the pooled vector
    potential_outputs: int = 8
    inner_steps: int = 3
    head_width: int = 128


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
    embedding = ResidualNetwork((1, sizes.width, sizes.width, sizes.channels))
    pooling = SumPooling(sizes.channels, sizes.channels, scale=1 / SET_SIZE)
    return SetRegressor(nn.Sequential(embedding, pooling), sizes.channels, sizes.head_width)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
