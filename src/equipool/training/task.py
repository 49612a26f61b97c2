"""What an experiment hands to the engine: its network, its data, its loss, its evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from equipool.training.examination import Examination

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Shard:
    """The part of every batch that one of `world` processes trains on.

    The joined batch is the same for every `world`: generate it (or its indices) whole and keep
    `part(rows)`, rows `rank * n / world` to `(rank + 1) * n / world`. Equal parts, so that the mean
    of the processes' mean losses is the mean over the joined batch.

    >>> Shard(rank=1, world=2).part(torch.arange(6))
    tensor([3, 4, 5])
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be in 0..world - 1, got {self.rank} of {self.world}")

    def part(self, rows: Tensor, dim: int = 0) -> Tensor:
        """The rows of this process, a view."""
        count = rows.shape[dim]
        if count % self.world:
            raise ValueError(f"{count} rows do not divide into {self.world} equal parts")
        share = count // self.world
        return rows.narrow(dim, self.rank * share, share)


@dataclass(frozen=True)
class Loss:
    """A step's loss and what else is worth knowing of it: scalar tensors, left on the device."""

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Task(ABC):
    """An experiment. A subclass is a frozen dataclass of fields that JSON can hold.

    The fields are the config that a run is identified by: two runs with equal fields and equal
    training settings are the same run. `batch_size` and `seed` are among them.

    >>> from dataclasses import dataclass
    >>> from equipool.training.task import Loss, Shard, Task
    >>> @dataclass(frozen=True)
    ... class Double(Task):
    ...     name = "double"
    ...     monitor = "error"
    ...     batch_size: int = 8
    ...     seed: int = 0
    ...
    ...     def network(self):
    ...         return torch.nn.Linear(1, 1)
    ...
    ...     def batches(self, first_step, num_steps, device, shard):
    ...         generator = torch.Generator(device).manual_seed(self.seed * 1_000_003 + first_step)
    ...         shape = (num_steps, self.batch_size, 1)
    ...         return {"x": shard.part(torch.rand(shape, generator=generator, device=device), 1)}
    ...
    ...     def loss(self, network, batch):
    ...         return Loss((network(batch["x"]) - 2 * batch["x"]).square().mean())
    ...
    ...     def evaluate(self, network, device):
    ...         x = torch.linspace(0, 1, 11, device=device)[:, None]
    ...         return {"error": (network(x) - 2 * x).abs().mean().item()}
    >>> Double().batches(0, 5, torch.device("cpu"), Shard())["x"].shape
    torch.Size([5, 8, 1])
    """

    #: The task's name, as in the command and in the records.
    name: ClassVar[str]
    #: The key of `evaluate`'s result by which the best checkpoint is chosen.
    monitor: ClassVar[str]
    lower_is_better: ClassVar[bool] = True
    #: Further keys that a report tells of.
    reported: ClassVar[tuple[str, ...]] = ()

    batch_size: int
    seed: int

    @classmethod
    def upgrade(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of an older run under today's names. Override it when a field is renamed."""
        return dict(fields)

    @abstractmethod
    def network(self) -> nn.Module:
        """The network at its start, on the CPU. Called under the run's seed."""

    @abstractmethod
    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """The training data of steps `first_step` to `first_step + num_steps - 1`, on `device`.

        Every tensor has the leading dimension `num_steps`. A pure function of the task's fields
        and the arguments: no generator is kept from call to call, so that resuming is exact.
        The engine always asks for the same chunks, those that start at multiples of
        `TrainingConfig.chunk`: a generator seeded by `(seed, first_step)` will do, and may draw
        a whole chunk at once. The last chunk is whole as well, whatever the number of steps.
        """

    @abstractmethod
    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """The loss of one step's batch (without the leading dimension).

        Does not wait for the device and has static shapes, so that the step can be captured.
        Everything that is random in it comes from torch's default generator of the device.
        """

    @abstractmethod
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """Metrics on a fixed held-out stream, which does not depend on `seed`.

        Called without gradients and with the network in evaluation mode; every process of
        several calls it, and all must get the same numbers.
        """

    def expect(self, name: str, met: bool, expected: str) -> None:
        """Refuse the value of a field that is not as expected."""
        if not met:
            raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")

    def facts(self) -> dict[str, Any]:
        """What a run must remember of its data, as JSON holds it: a run is not gone on with, nor
        evaluated, where it has changed. Called by every process at the start of a run. By default
        there is nothing, as in a task whose fields say all."""
        return {}

    def examine(self, network: nn.Module, device: torch.device) -> Examination:
        """Tables and pictures of what a trained network does, for people to look at. Called as
        `evaluate` is, but by one process and once. By default there are none."""
        return Examination()
