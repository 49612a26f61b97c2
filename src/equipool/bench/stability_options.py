"""What may keep the training of learned dynamics from spiking, and under which conditions it is
tried."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from equipool import EquilibriumAggregation, LearnedStart, Nesterov, ResNetPotential, ZeroStart
from equipool.bench.stability_networks import SetRegressor
from equipool.bench.stability_solvers import with_bounded_rate
from equipool.bench.stability_training import Recipe
from equipool.solvers import RestrainedNesterov, Solver
from equipool.starts import Start

CHANNELS = 4
WIDTH = 16
INNER_STEPS = 5
PLAIN = Recipe()


@dataclass(frozen=True)
class Setting:
    """The conditions of a training."""

    name: str
    description: str
    learning_rate: float
    potential_outputs: int


@dataclass(frozen=True)
class Option:
    """One way to train; what is not named is as in the plain recipe."""

    name: str
    solver: Callable[[], Solver[Any]] = Nesterov
    start: Callable[[int], Start] = ZeroStart
    recipe: Recipe = PLAIN
    max_y_weight: float | None = None


class Trial(NamedTuple):
    """An option under a setting."""

    option: Option
    setting: Setting

    def names(self) -> tuple[str, str]:
        return self.option.name, self.setting.name

    def is_among(self, options: Collection[str] | None, settings: Collection[str] | None) -> bool:
        """Whether both are named; None names all."""
        chosen = not options or self.option.name in options
        return chosen and (not settings or self.setting.name in settings)


HARD = Setting("hard", "Adam at 1e-2, potential [16, 16, 8]", 1e-2, 8)
USUAL = Setting("usual", "Adam at 1e-3, potential [16, 16, 8]", 1e-3, 8)
ONE_OUTPUT = Setting("one output", "Adam at 1e-2, potential [16, 16, 1]", 1e-2, 1)

OPTIONS = (
    Option("plain recipe"),
    Option("step size below 0.25", lambda: with_bounded_rate(0.25)),
    Option("step size from 0.02", lambda: Nesterov(learning_rate=0.02)),
    Option("momentum from 0.5", lambda: Nesterov(momentum=0.5)),
    Option("steps no longer than 0.5", lambda: RestrainedNesterov(max_step=0.5)),
    Option("inner gradient no longer than 1", lambda: RestrainedNesterov(max_gradient=1.0)),
    Option("step size below 1 / curvature", lambda: RestrainedNesterov(curvature_safe=True)),
    Option("inner steps from 1 to 5", recipe=Recipe(ramp=0.4)),
    Option("y-weights no longer than 1", max_y_weight=1.0),
    Option("step size and momentum 10 times slower", recipe=Recipe(scalar_rate=0.1)),
    Option("gradient clipped at 1", recipe=Recipe(max_gradient=1.0)),
    Option("warm-up", recipe=Recipe(warm_up=0.2)),
    Option("start at 1, learned", start=lambda channels: LearnedStart(channels, value=1.0)),
    Option(
        "steps + curvature",
        lambda: RestrainedNesterov(max_step=0.5, curvature_safe=True),
    ),
    Option("steps + momentum", lambda: RestrainedNesterov(momentum=0.5, max_step=0.5)),
    Option(
        "steps + momentum + curvature",
        lambda: RestrainedNesterov(momentum=0.5, max_step=0.5, curvature_safe=True),
    ),
    Option(
        "steps + momentum + clipping",
        lambda: RestrainedNesterov(momentum=0.5, max_step=0.5),
        recipe=Recipe(max_gradient=1.0),
    ),
    Option(
        "steps + momentum + start",
        lambda: RestrainedNesterov(momentum=0.5, max_step=0.5),
        start=lambda channels: LearnedStart(channels, value=1.0),
    ),
)

# Tried under every setting; the others under the hard one alone.
SHORT_LIST = ("plain recipe", "steps + momentum + curvature")

TRIALS = (
    *(Trial(option, HARD) for option in OPTIONS),
    *(Trial(option, USUAL) for option in OPTIONS if option.name in SHORT_LIST),
    *(Trial(option, ONE_OUTPUT) for option in OPTIONS if option.name in SHORT_LIST),
)


def build_network(option: Option, setting: Setting, seed: int) -> SetRegressor:
    """The network of a seed at its start."""
    hidden = (WIDTH, WIDTH, setting.potential_outputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SetRegressor(
            EquilibriumAggregation(
                1,
                CHANNELS,
                potential=ResNetPotential(1, CHANNELS, hidden=hidden),
                solver=option.solver(),
                start=option.start(CHANNELS),
                num_steps=INNER_STEPS,
            )
        )
