"""How a run is trained."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from equipool.training.schedules import SHAPES, Schedule
from equipool.training.task import Task

PRECISIONS = ("32-true", "tf32", "bf16-mixed", "bf16-true", "64-true")

# Fields that change when something is written or how fast it goes, but none of the numbers, except
# for their rounding.
FREE = ("capture", "compile", "checkpoint_every", "checkpoint_seconds", "keep_last")


@dataclass(frozen=True)
class TrainingConfig:
    """How a run is trained.

    Args:
        steps: optimisation steps.
        learning_rate: of Adam, before the schedule.
        schedule: what the learning rate does after the warm-up, a name in `SHAPES`.
        warmup_steps: steps in which the learning rate rises linearly.
        final_learning_rate: the share of the learning rate that is left at the end.
        solver_rate_factor: learning rate of the inner optimisers' own step size and momentum, times
            that of all other parameters.
        beta1: decay of Adam's first moment.
        beta2: decay of Adam's second moment.
        epsilon: Adam's.
        weight_decay: decoupled, as in AdamW.
        clip_norm: longer gradients are shortened to this norm; None for none.
        guard_factor: a step whose gradient norm exceeds this many times its running average is
            skipped; None to skip only steps whose loss or gradient is not finite.
        ema_decay: decay of the average of the weights, and of normalisations' running statistics,
            that evaluation uses; None for none.
        aux_weight: weight of the equilibrium layers' auxiliary loss.
        precision: of Fabric, or `"tf32"`: float32 whose products may round their operands.
        capture: whether the step is captured in a CUDA graph; None where that is possible.
        compile: whether the network is compiled for the steps: a minute or more before the first,
            and fewer kernels in each.
        chunk: steps whose data is made at once.
        log_every: steps between two points of the log.
        evaluate_every: steps between two evaluations.
        checkpoint_every: steps between two checkpoints; None for none at an interval of steps.
        checkpoint_seconds: seconds between two checkpoints; None for none at an interval of time.
        keep_last: how many of the latest checkpoints are kept, beside the best.

    Example:
        >>> TrainingConfig(steps=1000, schedule="cosine", warmup_steps=100).learning_rate
        0.001
    """

    steps: int
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup_steps: int = 0
    final_learning_rate: float = 0.0
    solver_rate_factor: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    guard_factor: float | None = 100.0
    ema_decay: float | None = None
    aux_weight: float = 1e-4
    precision: str = "32-true"
    capture: bool | None = None
    compile: bool = False
    chunk: int = 100
    log_every: int = 1000
    evaluate_every: int = 10_000
    checkpoint_every: int | None = 10_000
    checkpoint_seconds: float | None = None
    keep_last: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            finite = not isinstance(value, float) or math.isfinite(value)
            self._expect(field.name, finite, "a finite number")
        for name in ("steps", "chunk", "log_every", "evaluate_every", "keep_last"):
            self._expect(name, getattr(self, name) >= 1, "1 or more")
        for name in ("warmup_steps", "weight_decay", "aux_weight", "solver_rate_factor"):
            self._expect(name, getattr(self, name) >= 0, "0 or more")
        for name in ("learning_rate", "epsilon"):
            self._expect(name, getattr(self, name) > 0, "more than 0")
        for name in ("clip_norm", "checkpoint_every", "checkpoint_seconds"):
            value = getattr(self, name)
            self._expect(name, value is None or value > 0, "more than 0, or None")
        for name in ("beta1", "beta2", "final_learning_rate"):
            self._expect(name, 0 <= getattr(self, name) <= 1, "at least 0 and at most 1")
        decay, factor = self.ema_decay, self.guard_factor
        self._expect("ema_decay", decay is None or 0 < decay < 1, "between 0 and 1, or None")
        self._expect("guard_factor", factor is None or factor > 1, "more than 1, or None")
        self._expect("schedule", self.schedule in SHAPES, f"one of {sorted(SHAPES)}")
        self._expect("precision", self.precision in PRECISIONS, f"one of {sorted(PRECISIONS)}")

    def _expect(self, name: str, met: bool, expected: str) -> None:
        if not met:
            raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")

    def learning_rate_schedule(self) -> Schedule:
        return Schedule(self.schedule, self.steps, self.warmup_steps, self.final_learning_rate)


def run_config(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """What a run is identified by, as JSON holds it: what was chosen, and the task's `facts` under
    `data`, where it has some."""
    chosen, facts = chosen_config(task, config), task.facts()
    return chosen | {"data": _as_json(facts)} if facts else chosen


def chosen_config(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """The part of `run_config` that is known before any data is read."""
    given: Any = task
    if not hasattr(given, "__dataclass_fields__"):
        raise TypeError(f"task is a {type(task).__name__}, expected a dataclass: see Task")
    fields = flatten(asdict(given))
    return _as_json({"task": task.name, "fields": fields, "training": asdict(config)})


def flatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields whose value is a mapping with a `name` as a field for each entry.

    Example:
        >>> flatten({"solver": {"name": "newton", "damping": 0.1}, "seed": 0})
        {'solver': 'newton', 'solver.damping': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for field, value in fields.items():
        if isinstance(value, Mapping):
            entries = flatten(value)
            flat[field] = entries.pop("name")
            flat |= {f"{field}.{entry}": inner for entry, inner in entries.items()}
        else:
            flat[field] = value
    return flat


def nest(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`.

    Example:
        >>> nest({"solver": "newton", "solver.damping": 0.1, "seed": 0})
        {'solver': {'name': 'newton', 'damping': 0.1}, 'seed': 0}
    """
    nested = {field: value for field, value in fields.items() if "." not in field}
    for field in nested:
        entries = {
            name.removeprefix(f"{field}."): value
            for name, value in fields.items()
            if name.startswith(f"{field}.")
        }
        if entries:
            nested[field] = {"name": nested[field], **nest(entries)}
    return nested


def _as_json(content: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(content))


def differences(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The fields in which two configs differ, a line each; fields in `FREE` may. A field that is
    newer than the run counts as its default: what a field adds is off by default.

    Example:
        >>> differences({"task": "a", "training": {"steps": 1}}, {"task": "a", "training": {}})
        ['training.steps: 1 in the run, missing here']
    """
    before, now = _flat(upgraded(saved)), _flat(given)
    defaults = _flat(_defaults(saved.get("task")))
    before = {name: defaults[name] for name in now.keys() & defaults.keys()} | before
    return [
        f"{name}: {_shown(before, name)} in the run, {_shown(now, name)} here"
        for name in sorted(before.keys() | now.keys())
        if before.get(name, _MISSING) != now.get(name, _MISSING)
    ]


def differences_of_choice(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """As `differences`, but for what the data is like."""
    return differences(*({**config, "data": {}} for config in (saved, given)))


def differences_of_data(saved: Mapping[str, Any], task: Task) -> list[str]:
    """In what the task's data differs from that of a run, a line each."""
    return differences({"data": saved.get("data", {})}, {"data": _as_json(task.facts())})


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's config under today's names, with the fields that are newer than the run at their
    defaults."""
    config = upgraded(config)
    defaults = _defaults(config.get("task"))
    return {**config, **{part: values | config[part] for part, values in defaults.items()}}


def upgraded(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's config with its task's fields under today's names, complete."""
    kind = known_tasks().get(config.get("task", ""))
    if kind is None or not isinstance(config.get("fields"), Mapping):
        return config
    try:
        fields = flatten(asdict(_make_task(kind, config["fields"])))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return config  # of another version of the task: compared as it is
    return {**config, "fields": _as_json(fields)}


def _defaults(task: str | None) -> dict[str, Any]:
    """Where a task and its training settings stand unless they are chosen, as far as they do."""
    kinds: dict[str, Any] = {"fields": known_tasks().get(task or ""), "training": TrainingConfig}
    found = {
        part: {f.name: f.default for f in fields(kind) if f.default is not MISSING}
        for part, kind in kinds.items()
        if kind is not None and hasattr(kind, "__dataclass_fields__")
    }
    return _as_json(found)


_MISSING = object()


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    free = {f"training.{name}" for name in FREE}
    flat = {"task": config.get("task", _MISSING)}
    for part in ("fields", "training", "data"):
        label = "task" if part == "fields" else part
        flat |= {f"{label}.{name}": value for name, value in config.get(part, {}).items()}
    return {name: value for name, value in flat.items() if name not in free}


def _shown(config: Mapping[str, Any], name: str) -> str:
    return repr(config[name]) if name in config else "missing"


def known_tasks() -> dict[str, type[Task]]:
    """Every task that has been imported, by its name."""
    found: dict[str, type[Task]] = {}
    kinds = list(Task.__subclasses__())
    while kinds:
        kind = kinds.pop(0)
        kinds += kind.__subclasses__()
        if hasattr(kind, "name"):
            found[kind.name] = kind
    return found


def task_from_config(config: Mapping[str, Any]) -> Task:
    """The task of a run, made again from its fields."""
    tasks = known_tasks()
    if config["task"] not in tasks:
        raise ValueError(
            f"the run's task is {config['task']!r}, expected one of {sorted(tasks)}: "
            "import the module that defines it"
        )
    return _make_task(tasks[config["task"]], config["fields"])


def _make_task(kind: type[Task], fields: Mapping[str, Any]) -> Task:
    return kind(**{name: _tuples(value) for name, value in kind.upgrade(nest(fields)).items()})


def training_from_config(config: Mapping[str, Any]) -> TrainingConfig:
    """The training settings of a run."""
    known = {field.name for field in fields(TrainingConfig)}
    return TrainingConfig(**{k: v for k, v in config["training"].items() if k in known})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
