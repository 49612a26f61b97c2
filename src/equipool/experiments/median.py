"""The paper's first experiment: the median of 100 numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipool.baselines import aggregation_from_name
from equipool.experiments.common import Aggregation, InnerLoop, StepsSetting
from equipool.experiments.residual import ResidualNetwork
from equipool.settings import Count
from equipool.training import Batch, Loss, Shard, Task, generator_for

DISTRIBUTIONS = ("uniform", "gamma", "normal")
STEPS_AT_ONCE = 50  # steps whose sets come from one generator
SETS_AT_ONCE = 1000  # evaluation batch; on a CPU the size makes no difference


class MedianNetwork(nn.Module):
    """Predict one number for each set of numbers: embed each number, pool the set into `channels`
    values, and read them with a network of sizes `[channels, head_width, 1]`.

    The paper writes `[D, 128, 1]` for the last network; here `D` is its input. As an additional
    layer of four or eight rectified units it would die in some runs of every method.

    Args:
        embedding: `[B, N, 1] -> [B, N, C]`.
        aggregation: pools padded sets, `[B, N, C] -> [B, channels]`.
        channels: size of the pooled vector.
        head_width: hidden width of the last network.

    Shapes:
        `[B, N] -> [B]`.

    Example:
        >>> network = MedianNetwork(torch.nn.Identity(), equipool.EquilibriumAggregation(1, 8), 8)
        >>> network(torch.rand(5, 100)).shape
        torch.Size([5])
    """

    def __init__(
        self, embedding: nn.Module, aggregation: nn.Module, channels: int, head_width: int = 128
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.aggregation = aggregation
        self.head = nn.Sequential(
            nn.Linear(channels, head_width), nn.ReLU(), nn.Linear(head_width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.aggregation(self.embedding(x.unsqueeze(-1)))).squeeze(-1)


@dataclass(frozen=True)
class MedianTask(InnerLoop, Task):
    """Learn the median of a set of numbers, with the squared error as the loss. Defaults are the
    paper's values, unless noted.

    Args:
        aggregation: pooling method.
        embedding: D, the size of the pooled vector.
        batch_size: sets per step (the paper gives no number).
        seed: random seed of the weights and the training sets.
        set_size: numbers per set.
        width: width of the potential, or of the other methods' embedding network.
        head_width: width of the network after the pooling.
        potential_output: size of the potential's last layer.
        inner_steps: steps of the inner optimiser.
        evaluation_sets: number of sets to evaluate on; the same number always gives the same sets.
            80,000, as in the records, take minutes on a CPU.

    Example:
        >>> task = MedianTask(aggregation="sum", embedding=8, batch_size=4)
        >>> batch = task.batches(0, 10, torch.device("cpu"), Shard())
        >>> batch["x"].shape, batch["median"].shape
        (torch.Size([10, 4, 100]), torch.Size([10, 4]))
    """

    name: ClassVar[str] = "median"
    monitor: ClassVar[str] = "mse"
    lower_is_better: ClassVar[bool] = True

    aggregation: Aggregation = "equilibrium"
    embedding: Count = 16
    batch_size: Count = 256
    seed: int = 0
    set_size: Count = 100
    width: Count = 256
    head_width: Count = 128
    potential_output: Count = 1
    inner_steps: StepsSetting = 5
    evaluation_sets: Count = 4000

    @classmethod
    def paper(
        cls, aggregation: str = "equilibrium", *, embedding: int = 16, seed: int = 0
    ) -> MedianTask:
        """The experiment as in the paper, evaluated on 80,000 sets."""
        return cls(aggregation, embedding=embedding, seed=seed, evaluation_sets=80_000)

    @classmethod
    def quick(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> MedianTask:
        """A smaller version that orders the methods after a minute on one core, with settings that
        make the layer learn quickly: a wider output of the potential, less momentum, and a start
        away from zero, where the potential's first normalisation magnifies small numbers. Meant
        for 1,500 steps of Adam at 0.01 with a cosine schedule."""
        return cls(
            aggregation, embedding=8, batch_size=32, seed=seed, set_size=32, width=64,
            potential_output=8,
            solver="nesterov:learning_rate=0.1,momentum=0.5",
            start="learned:value=1.0",
            evaluation_sets=8000,
        )  # fmt: skip

    def network(self) -> MedianNetwork:
        size, width = self.embedding, self.width
        if self.aggregation == "equilibrium":  # embeds and pools: it takes the numbers themselves
            potential = (width, width, self.potential_output)
            layer = self.equilibrium_layer(1, size, potential, self.inner_steps)
            return MedianNetwork(nn.Identity(), layer, size, self.head_width)
        pooling = aggregation_from_name(self.aggregation, size, size, set_size=self.set_size)
        embedding = ResidualNetwork((1, width, width, size))
        return MedianNetwork(embedding, pooling, size, self.head_width)

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """`x [num_steps, B, set_size]` and `median [num_steps, B]`. The sets of a step do not
        depend on the other steps requested. A CPU and a GPU draw different sets."""
        first, last = first_step // STEPS_AT_ONCE, (first_step + num_steps - 1) // STEPS_AT_ONCE
        shape, keys = (STEPS_AT_ONCE, self.batch_size), ("median", "training", self.seed)
        generators = (generator_for(device, *keys, block) for block in range(first, last + 1))
        x = torch.cat([sample_sets(shape, self.set_size, one)[0] for one in generators])
        x = shard.part(x.narrow(0, first_step - first * STEPS_AT_ONCE, num_steps), dim=1)
        x = x.contiguous()
        return {"x": x, "median": medians(x)}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        return Loss((network(batch["x"]) - batch["median"]).square().mean())

    @torch.no_grad()
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """Mean squared error, its root, mean absolute error, and the mean squared error for each
        distribution."""
        x, median, kind = held_out_sets(self.evaluation_sets, self.set_size, device)
        found = torch.cat([network(part) for part in x.split(SETS_AT_ONCE)])
        errors = found.double() - median
        squares = errors.square()
        mse = squares.mean()
        metrics = {"mse": mse, "rmse": mse.sqrt(), "mae": errors.abs().mean()}
        for position, distribution in enumerate(DISTRIBUTIONS):
            metrics[f"mse_{distribution}"] = squares[kind == position].mean()
        return {name: value.item() for name, value in metrics.items()}


def sample_sets(
    shape: tuple[int, ...], set_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw sets of numbers, each from a distribution chosen at random: uniform on [0, 1], gamma of
    shape 0.5 and scale 0.2, or normal of mean 0.5 and deviation 0.4.

    Returns:
        The numbers, `[*shape, set_size]`, and the positions of the sets' distributions in
        `DISTRIBUTIONS`, `[*shape]`, on the generator's device.

    Example:
        >>> x, kind = sample_sets((4,), 100, torch.Generator().manual_seed(0))
        >>> x.shape, kind.shape
        (torch.Size([4, 100]), torch.Size([4]))
    """
    device, size = generator.device, (*shape, set_size)
    kind = torch.randint(len(DISTRIBUTIONS), shape, generator=generator, device=device)
    uniform = torch.rand(size, generator=generator, device=device)
    normal = torch.randn(size, generator=generator, device=device)
    # The square of a standard normal number is gamma of shape 0.5 and scale 2.
    own = kind.unsqueeze(-1)
    others = torch.where(own == 1, 0.1 * normal.square(), 0.5 + 0.4 * normal)
    return torch.where(own == 0, uniform, others), kind


def medians(x: Tensor) -> Tensor:
    """Median of the last dimension, `[..., N] -> [...]`; for an even N the mean of the two middle
    numbers.

    Example:
        >>> medians(torch.tensor([[4.0, 1.0, 2.0, 3.0]]))
        tensor([2.5000])
    """
    ordered = x.sort(-1).values
    size = x.shape[-1]
    return ordered[..., (size - 1) // 2 : size // 2 + 1].mean(-1)


@lru_cache(maxsize=1)
def held_out_sets(
    num_sets: int, set_size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The sets for evaluation, `[num_sets, set_size]`, their medians and their distributions,
    `[num_sets]`: the same on every device and for every seed."""
    generator = generator_for(torch.device("cpu"), "median", "held out")
    x, kind = sample_sets((num_sets,), set_size, generator)
    return x.to(device), medians(x).to(device), kind.to(device)
