"""Training settings, and what identifies a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from equipool.training.task import Task

T = TypeVar("T")

PRECISIONS = ("32-true", "tf32", "bf16-mixed", "bf16-true", "64-true")

# Fields that may differ when a run resumes: they change no result beyond rounding.
FREE = ("capture", "compile", "checkpoint_every", "checkpoint_seconds", "keep_last")


#: Learning rate schedules after the warm-up: functions of the progress from 0 to 1. `trapezoid`
#: falls over the last fifth.
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
    "trapezoid": lambda progress: min(1.0, (1 - progress) / 0.2),
}


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings.

    Args:
        steps: number of optimisation steps.
        learning_rate: learning rate of Adam, before the schedule.
        schedule: learning rate schedule after the warm-up, a name in `SHAPES`.
        warmup_steps: steps over which the learning rate rises linearly.
        final_learning_rate: learning rate at the end of the schedule, as a fraction of
            `learning_rate`.
        solver_rate_factor: factor on the learning rate of the inner solvers' step size and
            momentum.
        beta1: decay of Adam's first moment.
        beta2: decay of Adam's second moment.
        epsilon: epsilon of Adam.
        weight_decay: decoupled weight decay, as in AdamW.
        clip_norm: clip gradients to this norm; None disables clipping.
        guard_factor: skip a step whose gradient norm is more than this many times the running
            average; None skips only steps whose loss or gradient is not finite.
        ema_decay: decay of the moving average of the weights that evaluation uses; None to
            evaluate the weights themselves.
        aux_weight: weight of the equilibrium layers' auxiliary loss.
        aux_start: fraction of the steps before which that weight is 0.
        aux_initial: the weight at `aux_start`, from which it rises or falls geometrically to
            `aux_weight` at the end; None for a constant weight.
        precision: a precision of Lightning Fabric, or `"tf32"` for float32 with TF32 matrix
            products.
        capture: capture the step in a CUDA graph; None captures it where possible.
        compile: compile the network: takes a minute or more at the start, then launches fewer
            kernels per step.
        chunk: number of steps whose data is generated at once.
        log_every: steps between two entries of the log.
        evaluate_every: steps between two evaluations.
        checkpoint_every: steps between two checkpoints; None turns this off.
        checkpoint_seconds: seconds between two checkpoints; None turns this off.
        keep_last: number of latest checkpoints to keep, in addition to the best.

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
    aux_start: float = 0.0
    aux_initial: float | None = None
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
        check_types(TrainingConfig, vars(self))
        for name, value in vars(self).items():
            finite = not isinstance(value, float) or math.isfinite(value)
            self._expect(name, finite, "a finite number")
        for name in ("steps", "chunk", "log_every", "evaluate_every", "keep_last"):
            self._expect(name, getattr(self, name) >= 1, "1 or more")
        for name in ("warmup_steps", "weight_decay", "aux_weight", "solver_rate_factor"):
            self._expect(name, getattr(self, name) >= 0, "0 or more")
        for name in ("learning_rate", "epsilon"):
            self._expect(name, getattr(self, name) > 0, "more than 0")
        for name in ("clip_norm", "aux_initial", "checkpoint_every", "checkpoint_seconds"):
            value = getattr(self, name)
            self._expect(name, value is None or value > 0, "more than 0, or None")
        for name in ("beta1", "beta2", "final_learning_rate"):
            self._expect(name, 0 <= getattr(self, name) <= 1, "at least 0 and at most 1")
        decay, factor = self.ema_decay, self.guard_factor
        self._expect("ema_decay", decay is None or 0 < decay < 1, "between 0 and 1, or None")
        self._expect("guard_factor", factor is None or factor > 1, "more than 1, or None")
        self._expect("aux_start", 0 <= self.aux_start < 1, "at least 0 and less than 1")
        unused = self.aux_initial is None or self.aux_weight > 0
        self._expect("aux_initial", unused, "None, because aux_weight is 0")
        self._expect("schedule", self.schedule in SHAPES, f"one of {sorted(SHAPES)}")
        self._expect("precision", self.precision in PRECISIONS, f"one of {sorted(PRECISIONS)}")

    def _expect(self, name: str, met: bool, expected: str) -> None:
        if not met:
            raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")

    def learning_rate_factor(self, step: int) -> float:
        r"""The factor of the learning rate at step $s = 0, 1, \dots$ of $S$, with $W$ warm-up steps
        and the final factor $m$:

        $$f(s) = \frac{s + 1}{W} \;\text{ for } s < W, \qquad
          f(s) = m + (1 - m) \, \mathrm{shape}\left(\frac{s - W}{S - W}\right) \;\text{ else}.$$
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        final = self.final_learning_rate
        return final + (1 - final) * SHAPES[self.schedule](min(progress, 1.0))

    @property
    def aux_is_constant(self) -> bool:
        """Whether the weight of the auxiliary loss is the same at every step."""
        return self.aux_start == 0 and self.aux_initial is None

    def aux_weight_at(self, step: int) -> float:
        r"""The weight of the auxiliary loss at step $s = 0, 1, \dots$ of $S$, with the start $a$,
        the initial weight $v$ and the final weight $w$: 0 before $aS$, then
        $v (w / v)^p$ with $p = (s / S - a) / (1 - a)$."""
        if step < self.aux_start * self.steps:
            return 0.0
        if self.aux_initial is None:
            return self.aux_weight
        progress = (step / self.steps - self.aux_start) / (1 - self.aux_start)
        return self.aux_initial * (self.aux_weight / self.aux_initial) ** min(progress, 1.0)


def check_types(kind: type, values: Mapping[str, Any]) -> None:
    """Raise a ValueError if a value is not of its dataclass field's type, as far as the type is
    made of numbers, strings, booleans, None and tuples of those."""
    try:
        hints = get_type_hints(kind)
    except NameError:  # an annotation that only a type checker can see
        return
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            expected = getattr(hints[name], "__name__", str(hints[name]))
            raise ValueError(f"{name} is {value!r}, expected {expected}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        each = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is ... else inner
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if hint in (int, float):
        numbers = (int, float) if hint is float else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (str, bool, type(None)) else True


def run_config(task: Task, config: TrainingConfig) -> dict[str, Any]:
    """What identifies a run, as JSON: the settings, and the task's `facts` as `data`, if any."""
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
    entries: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        field, _, entry = name.partition(".")
        entries.setdefault(field, {})[entry] = value
    return {
        field: inner[""] if len(inner) == 1 else {"name": inner.pop(""), **nest(inner)}
        for field, inner in entries.items()
        if "" in inner
    }


def _as_json(content: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(content))


def differences(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The fields in which two configs differ, a line each, except those in `FREE`. A field that is
    newer than the run counts as its default, which is always the old behaviour.

    Example:
        >>> differences({"task": "a", "training": {"steps": 1}}, {"task": "a", "training": {}})
        ['training.steps: 1 in the run, missing here']
    """
    before, now = _flat(upgraded(saved)), _flat(given)
    defaults = _flat(_defaults(saved.get("task")))
    before = {name: defaults[name] for name in now.keys() & defaults.keys()} | before
    old, new = ({name: repr(value) for name, value in one.items()} for one in (before, now))
    return [
        f"{name}: {old.get(name, 'missing')} in the run, {new.get(name, 'missing')} here"
        for name in sorted(before.keys() | now.keys())
        if name not in before or name not in now or before[name] != now[name]
    ]


def differences_of_choice(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Like `differences`, without those of the data."""
    return differences({**saved, "data": {}}, {**given, "data": {}})


def differences_of_data(saved: Mapping[str, Any], task: Task) -> list[str]:
    """How the task's data differs from the data of a run, a line per difference."""
    return differences({"data": saved.get("data", {})}, {"data": _as_json(task.facts())})


def extended(saved: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The saved config with the given number of steps if a run may be extended to it: if it is
    larger and neither the learning rate nor the auxiliary weight depends on it, as under constant
    schedules. Otherwise the saved config."""
    before, steps = saved["training"], given["training"]["steps"]
    known = isinstance(before.get("steps"), int) and depends_on_steps(before) is None
    if not known or steps <= before["steps"]:
        return saved
    return saved | {"training": before | {"steps": steps}}


def depends_on_steps(training: Mapping[str, Any]) -> str | None:
    """What in saved training settings depends on the number of steps; None for nothing."""
    schedule = training.get("schedule", "constant")
    if schedule != "constant":
        return f"{schedule} schedule"
    rises = training.get("aux_initial") is not None
    return "auxiliary weight" if rises or training.get("aux_start", 0) > 0 else None


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
    except ValueError:
        return config  # of another version of the task: compared as it is
    return {**config, "fields": _as_json(fields)}


def _defaults(task: str | None) -> dict[str, Any]:
    """The defaults of a task's fields and of the training settings, where they have some."""
    kinds: dict[str, Any] = {"fields": known_tasks().get(task or ""), "training": TrainingConfig}
    found = {
        part: {f.name: f.default for f in fields(kind) if f.default is not MISSING}
        for part, kind in kinds.items()
        if kind is not None and hasattr(kind, "__dataclass_fields__")
    }
    return _as_json(found)


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
    return _make_task(tasks[name], config["fields"])


def _make_task(kind: type[Task], fields: Mapping[str, Any]) -> Task:
    return _build(kind, {name: _tuples(value) for name, value in nest(fields).items()})


def training_from_config(config: Mapping[str, Any]) -> TrainingConfig:
    known = {field.name for field in fields(TrainingConfig)}
    return _build(TrainingConfig, {k: v for k, v in config["training"].items() if k in known})


def _build(kind: type[T], values: Mapping[str, Any]) -> T:
    try:
        check_types(kind, values)
        return kind(**values)
    except TypeError as error:  # a field that does not exist, for instance
        raise ValueError(str(error)) from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
