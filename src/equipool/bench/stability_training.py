"""Training all seeds at once, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from equipool.bench.stability_networks import StackedRegressors
from equipool.experiments.median.data import DISTRIBUTIONS, medians, sample_kinds
from equipool.experiments.streams import generator_for

CPU = torch.device("cpu")
WINDOW = 100  # steps over which the running median is taken
FEWEST = 10  # steps that make a running median
SPIKE = 10.0  # times the running median
CHUNK = 100  # steps whose sets are drawn at once

Report = Callable[[int], None]


@dataclass(frozen=True)
class Recipe:
    """How the networks are trained, beside Adam's step size."""

    max_gradient: float | None = None  # of the norm over all parameters of a seed
    warm_up: float = 0.0  # share of the steps
    ramp: float = 0.0  # share of the steps over which the inner steps go from 1 to all
    scalar_rate: float = 1.0  # Adam's step size of the step size and the momentum, relative


@dataclass(frozen=True)
class Sizes:
    """Of the task."""

    set_size: int = 16
    batch_size: int = 16
    evaluation_sets: int = 4000


def train(
    networks: StackedRegressors,
    sizes: Sizes,
    recipe: Recipe,
    learning_rate: float,
    num_steps: int,
    report: Report = lambda step: None,
) -> Tensor:
    """Losses of each step before it was taken, `[num_steps, S]`."""
    groups = _parameter_groups(networks, recipe.scalar_rate, learning_rate)
    optimizer = torch.optim.Adam(groups, fused=True)
    inner_steps = networks.num_steps
    losses = []
    for step, (x, target) in zip(range(num_steps), batches(networks, sizes), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * _warm_up(step, recipe.warm_up * num_steps)
        networks.num_steps = _ramp(step, recipe.ramp * num_steps, inner_steps)
        loss = (networks(x) - target).square().mean(-1)
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.sum().backward()
        if recipe.max_gradient is not None:
            clip_each_seed(list(networks.parameters()), recipe.max_gradient)
        optimizer.step()
        report(step)
    networks.num_steps = inner_steps
    return torch.stack(losses)


@torch.no_grad()
def evaluate(networks: StackedRegressors, sizes: Sizes) -> Tensor:
    """Mean squared error of each seed on the same sets, `[S]`."""
    generator = generator_for(CPU, "stability", "evaluation")
    x, target = _draw(sizes.evaluation_sets, sizes.set_size, generator)
    batches = zip(x.split(sizes.batch_size), target.split(sizes.batch_size), strict=True)
    seeds = _num_seeds(networks)
    errors = [
        (networks(x.expand(seeds, -1, -1, -1)) - target).square().sum(-1) for x, target in batches
    ]
    return torch.stack(errors).sum(0) / sizes.evaluation_sets


def batches(networks: StackedRegressors, sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    """Sets and medians without end, `[S, B, N, 1]` and `[S, B]`: those of a seed are the same
    whatever other seeds there are."""
    seeds = range(_num_seeds(networks))
    generators = [generator_for(CPU, "stability", seed) for seed in seeds]
    while True:
        drawn = [_draw(CHUNK * sizes.batch_size, sizes.set_size, g) for g in generators]
        x = torch.stack([x.unflatten(0, (CHUNK, -1)) for x, _ in drawn], 1)
        target = torch.stack([target.unflatten(0, (CHUNK, -1)) for _, target in drawn], 1)
        yield from zip(x, target, strict=True)


def count_spikes(losses: Tensor) -> Tensor:
    """For each seed the steps whose loss is more than 10 times the median of those before it, 100
    at most and 10 at least, `[num_steps, S] -> [S]`. Losses that are not finite are no spikes,
    and are left out of the median."""
    finite = torch.where(torch.isfinite(losses), losses, torch.nan)
    spikes = torch.zeros(losses.shape[1], dtype=torch.long)
    for step in range(FEWEST, losses.shape[0]):
        usual = finite[max(step - WINDOW, 0) : step].nanmedian(0).values
        spikes += finite[step] > SPIKE * usual
    return spikes


def count_not_finite(losses: Tensor) -> Tensor:
    """For each seed the steps whose loss is not finite, `[num_steps, S] -> [S]`."""
    return (~torch.isfinite(losses)).sum(0)


def clip_each_seed(parameters: list[torch.nn.Parameter], longest: float) -> None:
    """Shorten each seed's gradient to this norm over all of its parameters."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = torch.stack([g.flatten(1).square().sum(1) if g.dim() > 1 else g.square()
                           for g in gradients])  # fmt: skip
    factors = longest / squares.sum(0).sqrt().clamp(min=longest)
    for g in gradients:
        g.mul_(factors.view(-1, *(1 for _ in g.shape[1:])))


def _draw(num_sets: int, set_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    kind = torch.randint(len(DISTRIBUTIONS), (num_sets,), generator=generator)
    x = sample_kinds(kind, set_size, generator)
    return x.unsqueeze(-1), medians(x)


def _num_seeds(networks: StackedRegressors) -> int:
    return networks.start.shape[0]


def _parameter_groups(
    networks: StackedRegressors, scalar_rate: float, learning_rate: float
) -> list[dict[str, object]]:
    scalars = networks.scalar_parameters()
    slow = {id(parameter) for parameter in scalars}
    others = [parameter for parameter in networks.parameters() if id(parameter) not in slow]
    return [
        {"params": others, "base": learning_rate},
        {"params": scalars, "base": learning_rate * scalar_rate},
    ]


def _warm_up(step: int, steps: float) -> float:
    return min((step + 1) / steps, 1.0) if steps else 1.0


def _ramp(step: int, steps: float, most: int) -> int:
    return min(1 + int((most - 1) * step / steps), most) if steps else most
