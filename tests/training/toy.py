"""A task small enough to train in a test: the mean of a set."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from equipool import EquilibriumAggregation, NormalStart, RandomSteps, ResNetPotential, Truncated
from equipool.training import Loss, Task, TrainingConfig


class Pooled(nn.Module):
    """An equilibrium layer and a head, with or without what changes or draws numbers by itself."""

    def __init__(self, between, steps=2, **layer):
        super().__init__()
        potential = ResNetPotential(1, 2, hidden=(4, 2))
        self.pool = EquilibriumAggregation(1, 2, potential=potential, steps=steps, **layer)
        self.between = between
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.head(self.between(self.pool(x, mask=mask))).squeeze(-1)


class Plain(nn.Module):
    """Without an equilibrium layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self.layers(x.mean(1)).squeeze(-1)


NETWORKS = {
    "plain": Plain,
    "pooled": lambda: Pooled(nn.Identity()),
    "deep": lambda: Pooled(nn.Identity(), RandomSteps(1, 4), differentiation=Truncated(2)),
    "scattered": lambda: Pooled(
        nn.Identity(), RandomSteps(1, 4), differentiation=Truncated(2), start=NormalStart(2)
    ),
    "noisy": lambda: Pooled(nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5))),
}


@dataclass(frozen=True)
class Toy(Task):
    name: ClassVar[str] = "toy"
    monitor: ClassVar[str] = "error"

    batch_size: int = 4
    seed: int = 0
    kind: str = "plain"
    double: bool = False
    broken_step: int | None = None  # whose data is NaN

    @property
    def dtype(self):
        return torch.float64 if self.double else torch.float32

    def network(self):
        return NETWORKS[self.kind]().to(self.dtype)

    def batches(self, first_step, num_steps, device, shard):
        generator = torch.Generator().manual_seed(1000 * self.seed + first_step)
        x = torch.randn(num_steps, self.batch_size, 3, 1, generator=generator).to(self.dtype)
        if self.broken_step in range(first_step, first_step + num_steps):
            x[self.broken_step - first_step] = torch.nan
        return {"x": shard.part(x, 1).to(device)}

    def loss(self, network, batch):
        x = batch["x"]
        error = network(x) - x.mean((1, 2))
        return Loss(error.square().mean(), {"deviation": error.detach().abs().mean()})

    def evaluate(self, network, device):
        x = torch.linspace(-1, 1, 60, device=device, dtype=self.dtype).reshape(20, 3, 1)
        return {"error": (network(x) - x.mean((1, 2))).square().mean().item()}


def config(**changed):
    """Settings under which everything happens within 20 steps."""
    given = {
        "steps": 20, "chunk": 4, "log_every": 5, "evaluate_every": 8, "checkpoint_every": 6,
        "warmup_steps": 3, "schedule": "cosine", "learning_rate": 1e-2,
    }  # fmt: skip
    return TrainingConfig(**(given | changed))


@dataclass(frozen=True)
class Fed(Toy):
    """A toy with data, which may change."""

    name: ClassVar[str] = "fed toy"
    rows: ClassVar[int] = 3

    def facts(self):
        return {"rows": self.rows, "columns": ("a", "b")}
