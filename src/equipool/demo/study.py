"""The demonstration's numbers: train the networks, then look inside the layer.

Networks and data are the median experiment's, and the training is `equipool.training.fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipool import EquilibriumAggregation
from equipool.experiments.median import MedianTask
from equipool.experiments.median.data import DISTRIBUTIONS, medians, sample_kinds, sample_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.training import TrainingConfig, fit
from equipool.training.progress import Progress

EQUILIBRIUM, SUM = "equilibrium", "sum pooling"
TRIAL_STEPS = 40  # timed to choose the number of steps


@dataclass(frozen=True)
class Plan:
    """What to run. With `steps` every run of a seed gives the same numbers; with `seconds` the
    number of steps depends on the machine's speed."""

    seed: int = 0
    seconds: float = 20.0
    steps: int | None = None
    width: int = 64
    channels: int = 8
    inner_steps: int = 3
    batch_size: int = 16
    set_size: int = 100
    test_sets: int = 4000
    path_sets: int = 200
    sets_per_kind: int = 2
    inner_steps_shown: int = 50
    grid: int = 45

    def task(self, method: str) -> MedianTask:
        """The experiment, smaller than the paper's so that a minute is enough. The networks differ
        in how they pool, and in nothing else.

        Where x and y are both near zero, the potential's first normalisation magnifies them and the
        energy is steep. Gamma numbers are near zero, so the search starts elsewhere, and with small
        steps."""
        return MedianTask(
            "equilibrium" if method == EQUILIBRIUM else "scaled-sum", embedding=self.channels,
            batch_size=self.batch_size, seed=self.seed, set_size=self.set_size, width=self.width,
            potential_output=8, inner_steps=self.inner_steps, evaluation_sets=self.test_sets,
            solver="nesterov:learning_rate=0.02,momentum=0.5",
            start="learned:value=1.0", bias_std=0.3,
        )  # fmt: skip

    def config(self, steps: int) -> TrainingConfig:
        """How both networks are trained."""
        return TrainingConfig(
            steps, learning_rate=1e-2, schedule="cosine", warmup_steps=steps // 20, clip_norm=1.0,
            guard_factor=None, aux_weight=0.0, chunk=20, log_every=20,
        )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One trained network."""

    method: str
    name: str  # the method, and what it has in common with the first network
    parameters: int
    losses: Tensor  # [steps]; no set is seen twice, so a batch's loss estimates the error
    seconds: float
    error: float  # mean squared, on the test sets

    @property
    def steps(self) -> int:
        return len(self.losses)


@dataclass(frozen=True)
class Paths:
    """The search for the outputs of a few sets, continued beyond the trained number of steps."""

    trained_steps: int
    y: Tensor  # [S + 1, B, K] from the start to the end
    energy: Tensor  # [S + 1, B]

    @property
    def num_steps(self) -> int:
        return self.y.shape[0] - 1


@dataclass(frozen=True)
class Landscape:
    """The energy of one set on a plane through the end of its path."""

    horizontal: Tensor  # [G] coordinates
    vertical: Tensor  # [G]
    energy: Tensor  # [G, G], a row for each vertical coordinate
    path: Tensor  # [S + 1, 2] projected onto the plane
    trained_steps: int
    share: float  # of the path's squared distance from its end that lies in the plane


@dataclass(frozen=True)
class Study:
    """All results."""

    results: list[Result]
    layer: EquilibriumAggregation
    paths: Paths  # of the sets in the pictures
    kinds: Tensor  # [B] their distributions
    error_by_step: Tensor  # [S + 1]
    landscape: Landscape


MakeProgress = Callable[[str], Progress | bool]
"""A display for the training of a network with this name; False for none."""


def run_study(plan: Plan, make_progress: MakeProgress) -> Study:
    """Train and test the networks, then look inside the layer."""
    network, results = compare_networks(plan, make_progress)
    layer = network.aggregation
    assert isinstance(layer, EquilibriumAggregation)
    generator = torch.Generator().manual_seed(plan.seed)
    kinds = torch.arange(len(DISTRIBUTIONS)).repeat_interleave(plan.sets_per_kind)
    x = sample_kinds(kinds, plan.set_size, generator).unsqueeze(-1)
    paths = follow(layer, x, plan.inner_steps_shown)
    many, _ = sample_sets((plan.path_sets,), plan.set_size, generator)
    long = follow(layer, many.unsqueeze(-1), plan.inner_steps_shown)
    errors = error_along(network, long, medians(many))
    plane = landscape(layer, x[0], paths.y[:, 0], plan.grid)
    return Study(results, layer, paths, kinds, errors, plane)


def compare_networks(plan: Plan, make_progress: MakeProgress) -> tuple[MedianNetwork, list[Result]]:
    """Train equilibrium first; then sum pooling for as many steps and, if the budget is in seconds,
    for as long."""
    steps = plan.steps or affordable_steps(plan)
    network, first = train(plan, EQUILIBRIUM, EQUILIBRIUM, steps, make_progress)
    if plan.steps is not None:
        return network, [first, train(plan, SUM, SUM, steps, make_progress)[1]]
    _, second = train(plan, SUM, f"{SUM} (same steps)", steps, make_progress)
    longer = max(1, round(first.seconds / second.seconds * steps))
    _, third = train(plan, SUM, f"{SUM} (same time)", longer, make_progress)
    return network, [first, second, third]


def affordable_steps(plan: Plan) -> int:
    """How many steps of equilibrium fit into the plan's seconds, by a short training."""
    short = replace(plan, test_sets=1)
    record = fit(short.task(EQUILIBRIUM), short.config(TRIAL_STEPS), "cpu").record
    return max(1, round(plan.seconds / record.training_seconds * TRIAL_STEPS))


def train(
    plan: Plan, method: str, name: str, steps: int, make_progress: MakeProgress
) -> tuple[MedianNetwork, Result]:
    """Train one network and test it."""
    fitted = fit(plan.task(method), plan.config(steps), "cpu", progress=make_progress(name))
    assert isinstance(fitted.network, MedianNetwork)
    record, losses = fitted.record, fitted.history["loss"]
    error = record.metrics[MedianTask.monitor]
    error = math.nan if error is None else error
    seconds = record.training_seconds
    return fitted.network, Result(method, name, record.num_parameters, losses, seconds, error)


@torch.no_grad()
def follow(layer: EquilibriumAggregation, x: Tensor, num_steps: int) -> Paths:
    """Search the outputs of `x [B, N, C]` for `num_steps` steps and keep the path."""
    trained_steps = layer.num_steps
    layer.num_steps = num_steps
    try:
        trajectory = layer.solve(x, trajectory=True).trajectory
    finally:
        layer.num_steps = trained_steps
    assert trajectory is not None
    energy = torch.stack([layer.energy(x)(y) for y in trajectory])
    return Paths(trained_steps, trajectory, energy)


@torch.no_grad()
def error_along(network: MedianNetwork, paths: Paths, target: Tensor) -> Tensor:
    """Mean squared error of the prediction after each inner step, `[S + 1]`."""
    return (network.predict(paths.y) - target).square().mean(-1)


@torch.no_grad()
def landscape(
    layer: EquilibriumAggregation, x: Tensor, path: Tensor, grid: int = 61, margin: float = 0.35
) -> Landscape:
    """Evaluate the energy of the set `x [N, C]` around its path `[S + 1, K]`.

    The plane goes through the end of the path and is spanned by the two directions in which the
    path is furthest from it (the right singular vectors of `y_t - y_S`).
    """
    end = path[-1]
    away = path - end
    directions = torch.linalg.svd(away, full_matrices=False).Vh[:2]
    projected = away @ directions.T
    low, high = projected.amin(0), projected.amax(0)
    half = (0.5 + margin) * (high - low).max().clamp(min=1e-6)  # both axes have the same scale
    low, high = (low + high) / 2 - half, (low + high) / 2 + half
    horizontal, vertical = (torch.linspace(float(low[i]), float(high[i]), grid) for i in (0, 1))
    across, up = torch.meshgrid(horizontal, vertical, indexing="xy")
    y = end + torch.stack([across, up], -1).flatten(0, 1) @ directions
    energy = torch.cat([layer.energy(x.expand(len(part), -1, -1))(part) for part in y.split(256)])
    share = projected.square().sum() / away.square().sum().clamp(min=torch.finfo(away.dtype).tiny)
    return Landscape(
        horizontal, vertical, energy.view(grid, grid), projected, layer.num_steps, float(share)
    )
