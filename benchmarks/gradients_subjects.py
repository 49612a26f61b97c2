"""The layers whose gradients are compared: untrained, and after a short training on the median
experiment."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from gradients_record import Training
from torch import Tensor, nn

from equipool import EquilibriumAggregation, Nesterov, ResNetPotential, SquaredNorm
from equipool.comparison.measure import Batch
from equipool.experiments.median import MedianTask
from equipool.experiments.median.data import medians, sample_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.potentials.convex import ConvexPotential
from equipool.solvers import GradientDescent
from equipool.training import Batch as TaskBatch
from equipool.training import Loss, Shard, Task, TrainingConfig, fit

State = Literal["untrained", "trained", "convex"]
STATES: tuple[State, ...] = ("untrained", "trained", "convex")

SET_SIZE = 26
TRAINED_STEPS = 10
AVERAGED = 20  # losses at the start and at the end
MEDIAN = MedianTask(batch_size=8, set_size=SET_SIZE, evaluation_sets=100)
TASK = f"the median experiment with sets of {SET_SIZE}"


class LayerTask(Task):
    """The median experiment with this layer, trained in place."""

    name = "median layer"
    monitor = MedianTask.monitor
    batch_size, seed = MEDIAN.batch_size, MEDIAN.seed

    def __init__(self, layer: EquilibriumAggregation) -> None:
        self.layer = layer

    def network(self) -> MedianNetwork:
        return MedianNetwork(nn.Identity(), self.layer, self.layer.out_channels)

    def batches(
        self, first_step: int, num_steps: int, device: torch.device, shard: Shard
    ) -> TaskBatch:
        return MEDIAN.batches(first_step, num_steps, device, shard)

    def loss(self, network: nn.Module, batch: TaskBatch) -> Loss:
        return MEDIAN.loss(network, batch)

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        return MEDIAN.evaluate(network, device)


@dataclass(frozen=True)
class Examples:
    """Sets of numbers and their medians."""

    batch: Batch
    median: Tensor  # [B]


def make_examples(sets: int, seed: int, device: torch.device) -> Examples:
    """Sets of the median experiment, the same on every device."""
    x, _ = sample_sets((sets,), SET_SIZE, torch.Generator().manual_seed(seed))
    index = torch.arange(sets).repeat_interleave(SET_SIZE)
    batch = Batch(x.view(-1, 1).to(device), index.to(device), dim_size=sets)
    return Examples(batch, medians(x).to(device))


def make_layer(state: State, size: int) -> EquilibriumAggregation:
    """A layer with the paper's defaults, or one with a convex potential whose search converges in
    some dozen steps."""
    torch.manual_seed(0)
    if state != "convex":
        return EquilibriumAggregation(1, size)
    return EquilibriumAggregation(
        1, size, potential=ConvexPotential(1, size), regularizer=SquaredNorm(1.0),
        solver=Nesterov(0.5, momentum=0.5),
    )  # fmt: skip


def make_settling_layer(size: int, learning_rate: float = 0.05) -> EquilibriumAggregation:
    """The paper's potential, untrained, with a regulariser that outweighs it: plain descent
    converges to 1e-3 in about 2 / learning_rate steps."""
    torch.manual_seed(0)
    potential = ResNetPotential(1, size)
    for name, parameter in potential.linears.named_parameters():
        if name.endswith("bias"):  # with small biases the energy is steep at small numbers
            nn.init.normal_(parameter, std=1.0)
    return EquilibriumAggregation(
        1, size, potential=potential, regularizer=SquaredNorm(2.0),
        solver=GradientDescent(learning_rate), scaling="mean",
    )  # fmt: skip


class Subjects:
    """Layers by state and output size. Each is trained once, when it is first needed."""

    def __init__(self, device: torch.device, training_steps: int) -> None:
        self.device = device
        self.training_steps = training_steps
        self.trainings: list[Training] = []
        self._made: dict[tuple[State, int], EquilibriumAggregation] = {}

    def __call__(self, state: State, size: int) -> EquilibriumAggregation:
        """A copy of the layer."""
        key = (state, size)
        if key not in self._made:
            layer = make_layer(state, size)
            layer.num_steps = TRAINED_STEPS
            if state != "untrained":
                self.trainings.append(self._train(state, size, layer))
            self._made[key] = layer.to(self.device)
        return copy.deepcopy(self._made[key])

    def _train(self, state: State, size: int, layer: EquilibriumAggregation) -> Training:
        config = TrainingConfig(
            self.training_steps, guard_factor=None, aux_weight=0.0, chunk=50, capture=False
        )
        losses = fit(LayerTask(layer), config, self.device).history["loss"]
        recipe = (
            f"{config.steps} steps of Adam at {config.learning_rate:g}, {MEDIAN.batch_size} sets "
            f"each, gradient norm clipped at {config.clip_norm:g}, unrolled, T = {TRAINED_STEPS}"
        )
        return Training(state, size, TASK, recipe, float(losses[:AVERAGED].mean()),
                        float(losses[-AVERAGED:].mean()))  # fmt: skip
