"""The layers whose gradients are compared: as they are made, and after a short training."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor, nn

from equipool import EquilibriumAggregation, Nesterov, ResNetPotential, SquaredNorm
from equipool.bench.gradients_record import Training
from equipool.comparison.passes import Batch
from equipool.potentials.convex import ConvexPotential
from equipool.solvers import GradientDescent

State = Literal["untrained", "trained", "convex"]
STATES: tuple[State, ...] = ("untrained", "trained", "convex")
CHANNELS = 8
TASK = (
    f"mean squared error of the coordinate-wise median of Gaussian sets of {CHANNELS} channels, "
    "13 to 39 elements around a mean of the set's own, by a linear map of the layer's output"
)
TRAINED_STEPS = 10
BATCH = 8
AVERAGED = 20


@dataclass(frozen=True)
class Examples:
    """Sets and what is to be read off them."""

    batch: Batch
    median: Tensor  # [B, CHANNELS]


def make_examples(sets: int, seed: int, device: torch.device) -> Examples:
    """Gaussian sets, the same on every device."""
    return _draw(sets, torch.Generator().manual_seed(seed), device)


def _draw(sets: int, generator: torch.Generator, device: torch.device) -> Examples:
    counts = torch.randint(13, 40, (sets,), generator=generator)
    index = torch.arange(sets).repeat_interleave(counts)
    centre = torch.randn(sets, CHANNELS, generator=generator)
    x = centre[index] + torch.randn(len(index), CHANNELS, generator=generator)
    median = torch.stack([part.median(0).values for part in x.split(counts.tolist())])
    batch = Batch(x.to(device), index.to(device), dim_size=sets)
    return Examples(batch, median.to(device))


def make_layer(state: State, size: int) -> EquilibriumAggregation:
    """The paper's defaults, or a convex potential whose search converges in some dozen steps."""
    torch.manual_seed(0)
    if state != "convex":
        return EquilibriumAggregation(CHANNELS, size)
    return EquilibriumAggregation(
        CHANNELS,
        size,
        potential=ConvexPotential(CHANNELS, size),
        regularizer=SquaredNorm(1.0),
        solver=Nesterov(0.5, momentum=0.5),
    )


def make_settling_layer(size: int, learning_rate: float = 0.05) -> EquilibriumAggregation:
    """The paper's potential, untrained, under a regulariser that outweighs it: plain descent
    converges, to 1e-3 in about 2 / learning_rate steps."""
    torch.manual_seed(0)
    return EquilibriumAggregation(
        CHANNELS,
        size,
        potential=ResNetPotential(CHANNELS, size),
        regularizer=SquaredNorm(2.0),
        solver=GradientDescent(learning_rate),
        scaling="mean",
    )


class Subjects:
    """Layers by state and output size. Each is trained once, when it is first asked for."""

    def __init__(self, device: torch.device, training_steps: int) -> None:
        self.device = device
        self.training_steps = training_steps
        self.trainings: list[Training] = []
        self._made: dict[tuple[State, int], EquilibriumAggregation] = {}

    def __call__(self, state: State, size: int) -> EquilibriumAggregation:
        """A copy of the layer."""
        key = (state, size)
        if key not in self._made:
            self._made[key] = make_layer(state, size).to(self.device)
            if state != "untrained":
                self.trainings.append(self._train(state, size, self._made[key]))
        return copy.deepcopy(self._made[key])

    def _train(self, state: State, size: int, layer: EquilibriumAggregation) -> Training:
        head = nn.Linear(size, CHANNELS).to(self.device)
        losses = train(layer, head, self.training_steps, self.device)
        recipe = (
            f"{self.training_steps} steps of Adam at 1e-3, {BATCH} sets each, gradient norm "
            f"clipped at 1, unrolled, T = {TRAINED_STEPS}"
        )
        return Training(state, size, TASK, recipe, fmean(losses[:AVERAGED]),
                        fmean(losses[-AVERAGED:]))  # fmt: skip


def train(
    layer: EquilibriumAggregation, head: nn.Module, steps: int, device: torch.device
) -> list[float]:
    """The loss of every step."""
    layer.num_steps = TRAINED_STEPS
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        examples = _draw(BATCH, generator, device)
        loss = (head(examples.batch.pool(layer)) - examples.median).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()
