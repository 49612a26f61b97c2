"""The paper's first experiment: the median of 100 numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipool.baselines import AGGREGATIONS, aggregation_from_name
from equipool.experiments.inner_loop import InnerLoop
from equipool.experiments.median.data import DISTRIBUTIONS, medians, sample_kinds
from equipool.experiments.median.network import equilibrium_network, pooling_network
from equipool.experiments.parts import StepsSetting
from equipool.experiments.streams import generator_for
from equipool.training.task import Batch, Loss, Shard, Task

STEPS_AT_ONCE = 50  # that one generator draws the sets of
SETS_AT_ONCE = 1000  # in an evaluation
POSITIVE = (
    "embedding", "batch_size", "set_size", "width", "head_width", "potential_output",
    "evaluation_sets",
)  # fmt: skip


@dataclass(frozen=True)
class MedianTask(InnerLoop, Task):
    """Learn the median of a set of numbers under the squared error. The fields are the paper's
    values, unless said otherwise.

    Args:
        aggregation: a name in `equipool.baselines.AGGREGATIONS`.
        embedding: D, the size of the pooled vector.
        batch_size: sets a step. The paper does not say.
        seed: of the weights and the training sets.
        set_size: numbers in a set.
        width: of the potential, or of the rivals' embedding network.
        head_width: of the network behind the pooling.
        potential_output: last size of the potential.
        inner_steps: steps of the inner optimiser.
        evaluation_sets: sets to evaluate on, always the same.

    Example:
        >>> task = MedianTask(aggregation="sum", embedding=8, batch_size=4)
        >>> batch = task.batches(0, 10, torch.device("cpu"), Shard())
        >>> batch["x"].shape, batch["median"].shape
        (torch.Size([10, 4, 100]), torch.Size([10, 4]))
    """

    name: ClassVar[str] = "median"
    monitor: ClassVar[str] = "mse"
    lower_is_better: ClassVar[bool] = True

    aggregation: str = "equilibrium"
    embedding: int = 16
    batch_size: int = 256
    seed: int = 0
    set_size: int = 100
    width: int = 256
    head_width: int = 128
    potential_output: int = 1
    inner_steps: StepsSetting = 5
    evaluation_sets: int = 80_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in POSITIVE:
            self.expect(name, getattr(self, name) >= 1, "1 or more")
        known = list(AGGREGATIONS)
        self.expect("aggregation", self.aggregation in known, f"one of {known}")

    @classmethod
    def paper(
        cls, aggregation: str = "equilibrium", *, embedding: int = 16, seed: int = 0
    ) -> MedianTask:
        """The experiment as the paper has it."""
        return cls(aggregation, embedding=embedding, seed=seed)

    @classmethod
    def quick(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> MedianTask:
        """Smaller, so that a minute on one core tells the methods apart, and with what makes the
        layer learn quickly: a wider output of the potential, less momentum, and a start away from
        zero, where the potential's first normalisation magnifies small numbers. Made for 1,500
        steps of Adam at 0.01 that end in a cosine."""
        return cls(
            aggregation,
            embedding=8,
            batch_size=32,
            seed=seed,
            set_size=32,
            width=64,
            potential_output=8,
            solver={"name": "restrained-nesterov", "learning_rate": 0.1, "momentum": 0.5},
            start={"name": "learned", "value": 1.0},
            evaluation_sets=8000,
        )

    def network(self) -> nn.Module:
        if self.aggregation == "equilibrium":
            potential = (self.width, self.width, self.potential_output)
            layer = self.equilibrium_layer(1, self.embedding, potential, self.inner_steps)
            return equilibrium_network(layer, self.head_width)
        aggregation = aggregation_from_name(
            self.aggregation, self.embedding, self.embedding, set_size=self.set_size
        )
        return pooling_network(
            aggregation, self.embedding, width=self.width, head_width=self.head_width
        )

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """`x [num_steps, B, set_size]` and `median [num_steps, B]`. A step's sets are the same
        whatever steps are asked for with it; on a GPU they are others than on a CPU."""
        first, last = first_step // STEPS_AT_ONCE, (first_step + num_steps - 1) // STEPS_AT_ONCE
        x = torch.cat([self._draw(piece, device) for piece in range(first, last + 1)])
        x = shard.part(x.narrow(0, first_step - first * STEPS_AT_ONCE, num_steps), dim=1)
        x = x.contiguous()
        return {"x": x, "median": medians(x)}

    def _draw(self, piece: int, device: torch.device) -> Tensor:
        """Sets of the steps `piece * STEPS_AT_ONCE` and on, `[STEPS_AT_ONCE, B, set_size]`."""
        generator = generator_for(device, "median", "training", self.seed, piece)
        return sample_sets((STEPS_AT_ONCE, self.batch_size), self.set_size, generator)[0]

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        return Loss((network(batch["x"]) - batch["median"]).square().mean())

    @torch.no_grad()
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """Mean squared error, its root, mean absolute error, and the mean squared error on the sets
        of each distribution."""
        x, median, kind = held_out_sets(self.evaluation_sets, self.set_size, device)
        found = torch.cat([network(part) for part in x.split(SETS_AT_ONCE)])
        errors = found.double() - median
        squares = errors.square()
        metrics = {
            "mse": squares.mean(),
            "rmse": squares.mean().sqrt(),
            "mae": errors.abs().mean(),
        }
        for position, distribution in enumerate(DISTRIBUTIONS):
            metrics[f"mse_{distribution}"] = squares[kind == position].mean()
        return {name: value.item() for name, value in metrics.items()}


def sample_sets(
    shape: tuple[int, ...], set_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Numbers `[*shape, set_size]`, each set from one distribution taken at random, and which one,
    `[*shape]`."""
    kind = torch.randint(len(DISTRIBUTIONS), shape, generator=generator, device=generator.device)
    return sample_kinds(kind, set_size, generator), kind


@lru_cache(maxsize=1)
def held_out_sets(
    num_sets: int, set_size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The sets to evaluate on, `[num_sets, set_size]`, their medians and their distributions,
    `[num_sets]`: the same on every device, and for every seed of a run."""
    generator = generator_for(torch.device("cpu"), "median", "held out")
    x, kind = sample_sets((num_sets,), set_size, generator)
    return x.to(device), medians(x).to(device), kind.to(device)
