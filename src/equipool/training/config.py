"""What identifies a run: a task and its training settings."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from equipool.settings import Count, Range, check_fields, from_json, to_json

Batch = dict[str, Tensor]

# Fields of `TrainingConfig` that may differ when a run resumes: they change no result beyond
# rounding.
FREE = ("capture", "compile", "checkpoint_every")

Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]


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
    return torch.Generator(device).manual_seed(seed_of(*key))


def seed_of(*key: object) -> int:
    """A seed that depends on the key alone. A CPU's generator uses at most 32 bits of it."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


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
    >>> from equipool.training import Loss, Shard, Task
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

    #: Every task that has been imported, by its name.
    registry: ClassVar[dict[str, type[Task]]] = {}

    batch_size: int
    seed: int

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):  # one that inherits the name does not take it over
            Task.registry[cls.name] = cls

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


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings.

    Args:
        steps: number of optimisation steps.
        learning_rate: learning rate of Adam, before the schedule.
        schedule: learning rate schedule after the warm-up.
        warmup_steps: steps over which the learning rate rises linearly.
        weight_decay: decoupled weight decay, as in AdamW.
        clip_norm: clip gradients to this norm; None disables clipping.
        aux_weight: weight of the equilibrium layers' auxiliary loss.
        aux_initial: that weight at the start, from which it rises or falls geometrically to
            `aux_weight` at the end; None for a constant weight.
        precision: `tf32` is float32 with TF32 matrix products, `bf16-mixed` autocast to bfloat16.
        capture: capture the step in a CUDA graph; None captures it where possible.
        compile: compile the network: takes a minute or more at the start, then launches fewer
            kernels per step.
        chunk: number of steps whose data is generated at once.
        log_every: steps between two entries of the log.
        evaluate_every: steps between two evaluations.
        checkpoint_every: steps between two checkpoints; None turns this off.

    Example:
        >>> TrainingConfig(steps=1000, schedule="cosine", warmup_steps=100).learning_rate
        0.001
    """

    steps: Count
    learning_rate: Positive = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Annotated[int, Range(least=0)] = 0
    weight_decay: NotNegative = 0.0
    clip_norm: Positive | None = 1.0
    aux_weight: NotNegative = 1e-4
    aux_initial: Positive | None = None
    precision: Literal["32-true", "tf32", "bf16-mixed"] = "32-true"
    capture: bool | None = None
    compile: bool = False
    chunk: Count = 100
    log_every: Count = 1000
    evaluate_every: Count = 10_000
    checkpoint_every: Count | None = 10_000

    def __post_init__(self) -> None:
        check_fields(self)
        if self.aux_initial is not None and self.aux_weight == 0:
            unused = "expected None, because aux_weight is 0"
            raise ValueError(f"aux_initial is {self.aux_initial!r}, {unused}")

    def learning_rate_at(self, step: int) -> float:
        r"""The learning rate at step $s = 0, 1, \dots$ of $S$, with $W$ warm-up steps:
        `learning_rate` times $(s + 1) / W$ for $s < W$; then times 1, or with the cosine schedule
        times

        $$f(s) = \tfrac12 + \tfrac12 \cos\left(\pi \frac{s - W}{S - W}\right).$$
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        progress = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

    def aux_weight_at(self, step: int) -> float:
        r"""The weight of the auxiliary loss at step $s = 0, 1, \dots$ of $S$, with the initial
        weight $v$ and the final weight $w$: $v (w / v)^{s / S}$."""
        if self.aux_initial is None:
            return self.aux_weight
        progress = min(step / self.steps, 1.0)
        return self.aux_initial * (self.aux_weight / self.aux_initial) ** progress


def run_config(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """What identifies a run, as JSON: the settings, and the task's `facts` as `data`, if any."""
    chosen, facts = chosen_config(task, config), task.facts()
    return chosen | {"data": json.loads(json.dumps(facts))} if facts else chosen


def chosen_config(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """The part of `run_config` that is known before any data is read."""
    return {"task": task.name, "fields": to_json(task), "training": to_json(config)}


def differences(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The fields in which two configs differ, a line each, except those in `FREE`.

    Example:
        >>> differences({"task": "a", "training": {"steps": 1}}, {"task": "a", "training": {}})
        ['training.steps: 1 in the run, missing here']
    """
    before, now = _flat(saved), _flat(given)

    def shown(flat: Mapping[str, Any], name: str) -> str:
        return repr(flat[name]) if name in flat else "missing"

    return [
        f"{name}: {shown(before, name)} in the run, {shown(now, name)} here"
        for name in sorted(before.keys() | now.keys())
        if name not in before or name not in now or before[name] != now[name]
    ]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = {"task": config["task"]} if "task" in config else {}
    for part, label in (("fields", "task"), ("training", "training"), ("data", "data")):
        for name, value in config.get(part, {}).items():
            if part != "training" or name not in FREE:
                flat[f"{label}.{name}"] = value
    return flat


def extended(saved: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The saved config with the given number of steps if a run may be extended to it: if it is
    larger and neither the learning rate nor the auxiliary weight depends on it, as under constant
    schedules. Otherwise the saved config."""
    before, steps = saved["training"], given["training"]["steps"]
    constant = before["schedule"] == "constant" and before["aux_initial"] is None
    if not (constant and steps > before["steps"]):
        return saved
    return saved | {"training": before | {"steps": steps}}


def task_from_config(config: Mapping[str, Any]) -> Task:
    """The task of a run, built from its saved fields."""
    name = config["task"]
    if name not in Task.registry:
        known = f"expected one of {sorted(Task.registry)}: import the module that defines it"
        raise ValueError(f"the run's task is {name!r}, {known}")
    return from_json(Task.registry[name], config["fields"])


def training_from_config(config: Mapping[str, Any]) -> TrainingConfig:
    return from_json(TrainingConfig, config["training"])
