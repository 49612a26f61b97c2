"""The tasks of the explorer's networks: an answer for each set of numbers, or of points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, ResNetPotential
from equipool.baselines.learned import AttentionPooling
from equipool.baselines.reductions import SumPooling
from equipool.training import Batch, Loss, Shard, Task

LARGEST = 2.0  # coordinates are between -LARGEST and LARGEST
SIZES = (3, 20)  # fewest and most elements of a set
USUAL_SIZE = 12
HELD_OUT = 2000


def sample_sets(num_sets: int, channels: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sets `[B, L, C]` and their mask `[B, L]`: clusters of several shapes, widths and places, half
    of them with outliers."""
    least, most = SIZES
    shape = (num_sets, most, channels)

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, generator=generator)

    normal = torch.randn(shape, generator=generator)
    kind = torch.randint(3, (num_sets, 1, 1), generator=generator)
    skewed = normal.square() * (2 * (uniform(num_sets, 1, channels) < 0.5) - 1)
    x = torch.where(kind == 0, normal, torch.where(kind == 1, skewed, 3.4 * uniform(*shape) - 1.7))
    x = (0.1 + 0.9 * uniform(num_sets, 1, 1)) * x + 2.8 * uniform(num_sets, 1, channels) - 1.4
    rate = 0.3 * (uniform(num_sets, 1, 1) - 0.5).clamp(min=0)
    outlier = uniform(num_sets, most, 1) < rate
    x = torch.where(outlier, LARGEST * (2 * uniform(*shape) - 1), x).clamp(-LARGEST, LARGEST)
    sizes = torch.randint(least, most + 1, (num_sets, 1), generator=generator)
    return x, torch.arange(most) < sizes


def medians(x: Tensor, mask: Tensor) -> Tensor:
    """`[B, L, C]` -> `[B, C]`; the mean of the two middle numbers of an even set."""
    ordered = x.masked_fill(~mask.unsqueeze(-1), torch.inf).sort(1).values
    counts = mask.sum(1).view(-1, 1, 1)
    middle = torch.cat([(counts - 1) // 2, counts // 2], 1).expand(-1, -1, x.shape[-1])
    return ordered.gather(1, middle).mean(1)


def maxima(x: Tensor, mask: Tensor) -> Tensor:
    """`[B, L, C]` -> `[B, C]`."""
    return x.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)


def geometric_medians(x: Tensor, mask: Tensor) -> Tensor:
    """The point with the least sum of distances, `[B, L, C]` -> `[B, C]`, by Weiszfeld's method."""
    weights = mask.double()
    y = (weights.unsqueeze(-1) * x).sum(1) / weights.sum(1, keepdim=True)
    for _ in range(200):
        distance = (x - y.unsqueeze(1)).norm(dim=-1).clamp(min=1e-6)
        pull = weights / distance
        y = (pull.unsqueeze(-1) * x).sum(1) / pull.sum(1, keepdim=True)
    return y.float()


def enclosing_centres(x: Tensor, mask: Tensor) -> Tensor:
    """The centre of the smallest circle around the points, `[B, L, 2]` -> `[B, 2]`: the smallest of
    the circles through two or three of them that holds all others."""
    x = x.double()
    pairs = torch.tensor(list(combinations(range(x.shape[1]), 2)))
    triples = torch.tensor(list(combinations(range(x.shape[1]), 3)))
    middles = x[:, pairs].mean(2)
    a, b, c = x[:, triples].unbind(2)
    centres = torch.cat([middles, a + circumcentres(b - a, c - a)], 1)
    real = torch.cat([mask[:, pairs].all(2), mask[:, triples].all(2)], 1)
    radius = torch.zeros_like(real, dtype=x.dtype)
    for i in range(x.shape[1]):  # the radius that holds every element
        distance = (centres - x[:, i : i + 1]).norm(dim=-1)
        radius = torch.where(mask[:, i : i + 1], torch.maximum(radius, distance), radius)
    radius = radius.masked_fill(~real, torch.inf).nan_to_num(torch.inf, torch.inf)
    best = radius.argmin(1)
    return centres[torch.arange(len(x)), best].float()


def circumcentres(b: Tensor, c: Tensor) -> Tensor:
    """Of the circles through 0, b and c, `[..., 2]`; not finite where these are on one line."""
    cross = 2 * (b[..., 0] * c[..., 1] - b[..., 1] * c[..., 0])
    b2, c2 = b.square().sum(-1), c.square().sum(-1)
    horizontal = c[..., 1] * b2 - b[..., 1] * c2
    vertical = b[..., 0] * c2 - c[..., 0] * b2
    return torch.stack([horizontal, vertical], -1) / cross.unsqueeze(-1)


Target = Callable[[Tensor, Tensor], Tensor]
TARGETS: dict[str, tuple[int, Target]] = {
    "median": (1, medians),
    "maximum": (1, maxima),
    "geometric-median": (2, geometric_medians),
    "enclosing-centre": (2, enclosing_centres),
}
"""Channels and answer of each task."""


class SetNetwork(nn.Module):
    """`head(aggregation(encoder(x)))`, `[B, L, C] -> [B, C]`. All networks encode a set in as many
    numbers as its answer has."""

    def __init__(self, encoder: nn.Module, aggregation: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.aggregation = aggregation
        self.head = head

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.aggregation(self.encoder(x), mask=mask))


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear maps with rectifiers between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_network(method: str, channels: int, width: int) -> SetNetwork:
    """The output of the equilibrium is the answer itself. The rivals get a network before the
    pooling and one after it."""
    if method == "equilibrium":
        layer = EquilibriumAggregation(
            channels, channels, **(equipool.converging() | {"scaling": "mean"}),
            potential=ResNetPotential(channels, channels, hidden=(width, width, 8)),
        )  # fmt: skip
        return SetNetwork(nn.Sequential(), layer, nn.Sequential())
    encoder, head = perceptron(channels, width, width, width), perceptron(channels, width, channels)
    if method == "sum":
        pooling: nn.Module = SumPooling(width, channels, scale=1 / USUAL_SIZE)
    else:
        pooling = AttentionPooling(width, channels)
    return SetNetwork(encoder, pooling, head)


@lru_cache(maxsize=128)  # the networks of a task are trained on the same sets
def draw_batch(answer: str, num_sets: int, seed: int) -> Batch:
    """Sets with their answers."""
    channels, target = TARGETS[answer]
    x, mask = sample_sets(num_sets, channels, torch.Generator().manual_seed(seed))
    return {"x": x, "mask": mask, "target": target(x, mask)}


@dataclass(frozen=True)
class SetTask(Task):
    """Learn an answer for each set, with the squared error as the loss.

    Args:
        answer: a name in `TARGETS`.
        method: `"equilibrium"`, `"sum"` or `"attention"`.
        batch_size: sets per step.
        seed: random seed of the weights and the training sets.
        width: of the hidden layers.
    """

    name: ClassVar[str] = "explorer"
    monitor: ClassVar[str] = "rmse"

    answer: str = "median"
    method: str = "equilibrium"
    batch_size: int = 64
    seed: int = 0
    width: int = 32

    def network(self) -> SetNetwork:
        return make_network(self.method, TARGETS[self.answer][0], self.width)

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        batch = draw_batch(
            self.answer, num_steps * self.batch_size, self.seed * 1_000_003 + first_step
        )
        steps = {name: rows.unflatten(0, (num_steps, -1)) for name, rows in batch.items()}
        return {name: shard.part(rows, 1).to(device) for name, rows in steps.items()}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        found = network(batch["x"], batch["mask"])
        return Loss((found - batch["target"]).square().sum(-1).mean())

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        held_out = draw_batch(self.answer, HELD_OUT, 2**40)
        batch = {name: rows.to(device) for name, rows in held_out.items()}
        found = network(batch["x"], batch["mask"])
        return {"rmse": (found - batch["target"]).square().sum(-1).mean().sqrt().item()}
