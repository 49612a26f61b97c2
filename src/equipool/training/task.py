"""What the engine needs of an experiment: network, data, loss and evaluation."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Shard:
    """The part of every batch that one of `world` processes trains on.

    The whole batch must not depend on `world`: generate all of it (or its indices) and keep
    `part(rows)`, the rows `rank * n / world` to `(rank + 1) * n / world`. The parts are equal, so
    that the mean of the processes' mean losses is the mean over the whole batch.

    >>> Shard(rank=1, world=2).part(torch.arange(6))
    tensor([3, 4, 5])
    """

    rank: int = 0
    world: int = 1

    def part(self, rows: Tensor, dim: int = 0) -> Tensor:
        count = rows.shape[dim]
        if count % self.world:
            raise ValueError(f"{count} rows do not divide into {self.world} equal parts")
        share = count // self.world
        return rows.narrow(dim, self.rank * share, share)


def generator_for(device: torch.device, *key: object) -> torch.Generator:
    """A generator that is seeded by the key: equal keys give equal streams on one kind of device,
    other keys independent ones. A CPU and a GPU draw different numbers from one seed.

    Example:
        >>> generator_for(torch.device("cpu"), "median", 0).initial_seed()
        1734236146
    """
    # A CPU's generator uses at most 32 bits of its seed.
    digest = hashlib.blake2b(repr(key).encode(), digest_size=4).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))


@dataclass(frozen=True)
class Loss:
    """The loss of a step and further metrics: scalar tensors on the device."""

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Task(ABC):
    """An experiment. A subclass is a frozen dataclass whose fields JSON can hold.

    The fields identify a run: two runs with equal fields and equal training settings are the same
    run. `batch_size` and `seed` are among them.

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
    #: The metric of `evaluate` that chooses the best checkpoint.
    monitor: ClassVar[str]
    lower_is_better: ClassVar[bool] = True
    #: Further metrics for reports.
    reported: ClassVar[tuple[str, ...]] = ()
    #: Whether `loss` never waits for the device and has static shapes, so that a step can be
    #: captured in a CUDA graph.
    capturable: ClassVar[bool] = True

    batch_size: int
    seed: int

    @abstractmethod
    def network(self) -> nn.Module:
        """The network with its initial weights, on the CPU. Called under the run's seed."""

    @abstractmethod
    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """The training data of steps `first_step` to `first_step + num_steps - 1`, on `device`.

        Every tensor has the leading dimension `num_steps`. Must be a pure function of the task's
        fields and the arguments, without a generator kept between calls, so that resuming is exact.
        The engine always requests the chunks that start at multiples of `TrainingConfig.chunk`, the
        last one in full: a generator seeded by `(seed, first_step)` can draw a whole chunk.
        """

    @abstractmethod
    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """The loss of one step's batch (without the leading dimension).

        Must not wait for the device and must have static shapes if the task is `capturable`.
        Random numbers must come from torch's default generator of the device.
        """

    @abstractmethod
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """Metrics on fixed held-out data, which does not depend on `seed`.

        Called without gradients, with the network in evaluation mode. All processes call it and
        must get the same numbers.
        """

    def expect(self, name: str, met: bool, expected: str) -> None:
        """Raise a ValueError about a field whose value is not as expected."""
        if not met:
            raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")

    def facts(self) -> dict[str, Any]:
        """What identifies the data, as JSON: if it has changed, a run is neither resumed nor
        evaluated. Called by every process at the start of a run. Empty by default, for tasks whose
        fields determine the data."""
        return {}

    def write_results(self, network: nn.Module, device: torch.device, folder: Path) -> None:
        """Write tables about a trained network into a folder. Called like `evaluate`, but by one
        process. Writes nothing by default."""
        return
