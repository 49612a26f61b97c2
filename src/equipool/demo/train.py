"""The training loop, within a budget of steps or of seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from equipool.demo.task import sample_sets


class Budget(Protocol):
    """How long to train."""

    def progress(self, steps: int, seconds: float) -> float:
        """The share of the budget that is spent, 1 or more when it is."""


@dataclass(frozen=True)
class Steps:
    """So many steps: the same result on every run."""

    limit: int

    def progress(self, steps: int, seconds: float) -> float:
        return steps / self.limit


@dataclass(frozen=True)
class Seconds:
    """So many seconds: as many steps as the machine takes in that time."""

    limit: float

    def progress(self, steps: int, seconds: float) -> float:
        return seconds / self.limit


@dataclass(frozen=True)
class Recipe:
    """How both networks are trained."""

    batch_size: int = 16
    learning_rate: float = 1e-2
    warm_up: float = 0.05  # share of the budget
    gradient_norm: float = 1.0  # largest, longer gradients are shortened


@dataclass
class History:
    """What happened at each step. No set is ever seen twice, so the error of a batch before its
    step is an unbiased estimate of the error on new sets."""

    errors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        return len(self.errors)

    @property
    def total_seconds(self) -> float:
        return self.seconds[-1] if self.seconds else 0.0


Report = Callable[[float, History], None]


def learning_rate_factor(progress: float, warm_up: float) -> float:
    """Rises linearly to 1 during the warm-up, then falls to 0 along half a cosine.

    Example:
        >>> [round(learning_rate_factor(p, 0.2), 3) for p in (0.0, 0.1, 0.2, 0.6, 1.0)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if progress < warm_up:
        return progress / warm_up
    return 0.5 * (1 + math.cos(math.pi * min((progress - warm_up) / (1 - warm_up), 1.0)))


def train(
    network: nn.Module,
    budget: Budget,
    recipe: Recipe,
    generator: torch.Generator,
    report: Report,
    clock: Callable[[], float] = time.perf_counter,
) -> History:
    """Train on fresh sets until the budget is spent; `report` hears of every step."""
    optimizer = torch.optim.Adam(network.parameters())
    history = History()
    start, progress = clock(), 0.0
    while progress < 1:
        factor = learning_rate_factor(progress, recipe.warm_up)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * factor
        x, target = sample_sets(recipe.batch_size, generator)
        history.errors.append(_step(network, optimizer, recipe, x, target))
        history.seconds.append(clock() - start)
        progress = budget.progress(history.num_steps, history.total_seconds)
        report(min(progress, 1.0), history)
    return history


def _step(
    network: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, x: Tensor, target: Tensor
) -> float:
    error = (network(x) - target).square().mean()
    optimizer.zero_grad()
    error.backward()
    nn.utils.clip_grad_norm_(network.parameters(), recipe.gradient_norm)
    optimizer.step()
    return error.item()


@torch.no_grad()
def mean_squared_error(network: nn.Module, x: Tensor, target: Tensor, batch_size: int) -> float:
    """Error on given sets, `x [B, N, 1]` and `target [B]`."""
    batches = zip(x.split(batch_size), target.split(batch_size), strict=True)
    total = sum(((network(x) - target).square().sum().item() for x, target in batches), start=0.0)
    return total / x.shape[0]
