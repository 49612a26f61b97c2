"""Training settings, and what identifies a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from equipool.settings import Count, OneOf, Range, check_fields, from_json, to_json
from equipool.training.task import Task

PRECISIONS = ("32-true", "tf32", "bf16-mixed", "bf16-true", "64-true")

# Fields that may differ when a run resumes: they change no result beyond rounding.
FREE = ("capture", "compile", "checkpoint_every")

Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]


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
        guard_factor: skip a step whose gradient norm is more than this many times the running
            average; None skips only steps whose loss or gradient is not finite.
        ema_decay: decay of the moving average of the weights that evaluation uses; None to
            evaluate the weights themselves.
        aux_weight: weight of the equilibrium layers' auxiliary loss.
        aux_initial: that weight at the start, from which it rises or falls geometrically to
            `aux_weight` at the end; None for a constant weight.
        precision: `tf32` is float32 with TF32 matrix products.
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
    guard_factor: Annotated[float, Range(above=1)] | None = 100.0
    ema_decay: Annotated[float, Range(above=0, below=1)] | None = None
    aux_weight: NotNegative = 1e-4
    aux_initial: Positive | None = None
    precision: Annotated[str, OneOf(f"{__name__}.PRECISIONS")] = "32-true"
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

    def learning_rate_factor(self, step: int) -> float:
        r"""The factor of the learning rate at step $s = 0, 1, \dots$ of $S$, with $W$ warm-up
        steps: $(s + 1) / W$ for $s < W$; then 1, or with the cosine schedule

        $$f(s) = \tfrac12 + \tfrac12 \cos\left(\pi \frac{s - W}{S - W}\right).$$
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        progress = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

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
    if not hasattr(task, "__dataclass_fields__"):
        raise TypeError(f"task is a {type(task).__name__}, expected a dataclass: see Task")
    return {"task": task.name, "fields": to_json(task), "training": to_json(config)}


def differences(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The fields in which two configs differ, a line each, except those in `FREE`.

    Example:
        >>> differences({"task": "a", "training": {"steps": 1}}, {"task": "a", "training": {}})
        ['training.steps: 1 in the run, missing here']
    """
    before, now = _flat(saved), _flat(given)
    old, new = ({name: repr(value) for name, value in one.items()} for one in (before, now))
    return [
        f"{name}: {old.get(name, 'missing')} in the run, {new.get(name, 'missing')} here"
        for name in sorted(before.keys() | now.keys())
        if name not in before or name not in now or before[name] != now[name]
    ]


def extended(saved: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The saved config with the given number of steps if a run may be extended to it: if it is
    larger and neither the learning rate nor the auxiliary weight depends on it, as under constant
    schedules. Otherwise the saved config."""
    before, steps = saved["training"], given["training"]["steps"]
    constant = before.get("schedule") == "constant" and before.get("aux_initial") is None
    if not (constant and isinstance(before.get("steps"), int) and steps > before["steps"]):
        return saved
    return saved | {"training": before | {"steps": steps}}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = {"task": config["task"]} if "task" in config else {}
    for part in ("fields", "training", "data"):
        label = "task" if part == "fields" else part
        flat |= {f"{label}.{name}": value for name, value in config.get(part, {}).items()}
    return {name: value for name, value in flat.items() if name not in _FREE}


_FREE = {f"training.{name}" for name in FREE}


def known_tasks() -> dict[str, type[Task]]:
    """Every task that has been imported, by the name that it defines itself: a subclass that
    inherits the name does not replace the task it is made from."""
    found: dict[str, type[Task]] = {}
    kinds = list(Task.__subclasses__())
    while kinds:
        kind = kinds.pop(0)
        kinds += kind.__subclasses__()
        if "name" in vars(kind):
            found[kind.name] = kind
    return found


def task_from_config(config: Mapping[str, Any]) -> Task:
    """The task of a run, built from its saved fields."""
    name, tasks = config["task"], known_tasks()
    if name not in tasks:
        known = f"expected one of {sorted(tasks)}: import the module that defines it"
        raise ValueError(f"the run's task is {name!r}, {known}")
    return from_json(tasks[name], config["fields"])


def training_from_config(config: Mapping[str, Any]) -> TrainingConfig:
    return from_json(TrainingConfig, config["training"])
