"""The whole demonstration, from the seed to the pictures' data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from equipool import EquilibriumAggregation
from equipool.demo.models import (
    SetRegressor,
    Sizes,
    equilibrium_network,
    num_parameters,
    sum_network,
)
from equipool.demo.paths import Landscape, Paths, error_along, follow, landscape
from equipool.demo.results import Result, full_name
from equipool.demo.task import DISTRIBUTIONS, sample_kinds, sample_sets
from equipool.demo.train import (
    Budget,
    History,
    Recipe,
    Seconds,
    Steps,
    mean_squared_error,
    train,
)

EQUILIBRIUM, SUM = "equilibrium", "sum pooling"
PURPOSES = ("weights", "training", "test", "pictures")


@dataclass(frozen=True)
class Plan:
    """What to run. With `steps` every run of a seed gives the same numbers; with `seconds` the
    number of steps, and so the result, depends on the machine."""

    seed: int = 0
    seconds: float = 28.0
    steps: int | None = None
    sizes: Sizes = field(default_factory=Sizes)
    recipe: Recipe = field(default_factory=Recipe)
    num_test_sets: int = 4000
    num_path_sets: int = 200
    sets_per_kind: int = 2
    inner_steps_shown: int = 50
    grid: int = 45


@dataclass(frozen=True)
class Study:
    """What came out."""

    results: list[Result]
    layer: EquilibriumAggregation
    paths: Paths  # of the sets in the picture
    kinds: Tensor  # [B] their distributions
    error_by_step: Tensor  # [S + 1]
    landscape: Landscape


Report = Callable[[str, float, History], None]


def run_study(plan: Plan, report: Report) -> Study:
    """Train the networks, test them, and look inside the layer."""
    network, results = _compare_networks(plan, report)
    layer = network.pooling
    assert isinstance(layer, EquilibriumAggregation)
    shown = torch.Generator().manual_seed(seed_for(plan.seed, "pictures"))
    kinds = torch.arange(len(DISTRIBUTIONS)).repeat_interleave(plan.sets_per_kind)
    x, _ = sample_kinds(kinds, shown)
    paths = follow(layer, x, plan.inner_steps_shown)
    many, medians = sample_sets(plan.num_path_sets, shown)
    errors = error_along(network, follow(layer, many, plan.inner_steps_shown), medians)
    return Study(
        results, layer, paths, kinds, errors, landscape(layer, x[0], paths.y[:, 0], plan.grid)
    )


def _compare_networks(plan: Plan, report: Report) -> tuple[SetRegressor, list[Result]]:
    """Equilibrium first. Sum pooling then gets as many steps, and where the budget is in seconds,
    as many seconds too."""
    run = partial(_run, plan, report)
    if plan.steps is not None:
        network, first = run(EQUILIBRIUM, "", equilibrium_network, Steps(plan.steps))
        _, second = run(SUM, "", sum_network, Steps(plan.steps))
        return network, [first, second]
    network, first = run(EQUILIBRIUM, "", equilibrium_network, Seconds(plan.seconds))
    _, second = run(SUM, "same steps", sum_network, Steps(first.steps))
    _, third = run(SUM, "same time", sum_network, Seconds(plan.seconds))
    return network, [first, second, third]


def _run(
    plan: Plan,
    report: Report,
    method: str,
    allowance: str,
    build: Callable[[Sizes], SetRegressor],
    budget: Budget,
) -> tuple[SetRegressor, Result]:
    """Train one network and test it."""
    torch.manual_seed(seed_for(plan.seed, "weights"))
    network = build(plan.sizes)
    generator = torch.Generator().manual_seed(seed_for(plan.seed, "training"))
    history = train(
        network, budget, plan.recipe, generator, partial(report, full_name(method, allowance))
    )
    test = sample_sets(
        plan.num_test_sets, torch.Generator().manual_seed(seed_for(plan.seed, "test"))
    )
    error = mean_squared_error(network, *test, batch_size=250)
    return network, Result(method, allowance, num_parameters(network), history, error)


def seed_for(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, so that test sets are not training sets."""
    return len(PURPOSES) * seed + PURPOSES.index(purpose)
