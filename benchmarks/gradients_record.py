"""Results of gradients.py, as a JSON file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from equipool.bench.record import FORMAT, Timing, read_content

Part = Literal["quality", "cost", "solvers", "stopping", "backward"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Training:
    """How a layer was trained before it was measured."""

    state: str
    size: int
    task: str
    recipe: str
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class Quality:
    """How close a method's gradient is to the exact one. None if one of them is not finite."""

    state: str
    size: int
    sets: int
    num_steps: int
    way: str
    cosine: float | None
    error: float | None
    x_cosine: float | None
    x_error: float | None
    converged: float
    fallback: float | None


@dataclass(frozen=True)
class Cost:
    """A training step, forward and backward."""

    state: str
    size: int
    sets: int
    elements: int
    num_steps: int
    way: str
    timing: Timing
    peak_bytes: int
    converged: float
    fallback: float | None


@dataclass(frozen=True)
class Solve:
    """A search to the tolerance, without gradients."""

    state: str
    size: int
    sets: int
    solver: str
    max_steps: int
    tolerance: float
    converged: float
    median_steps: float
    most_steps: int
    timing: Timing


@dataclass(frozen=True)
class Stopping:
    """A batch of which half the sets converge early, with and without early stopping."""

    size: int
    sets: int
    elements: int
    tolerance: float
    early_steps: float
    late_steps: float
    num_steps: int
    fixed: Timing
    stopping: Timing
    largest_difference: float

    @property
    def speedup(self) -> float:
        return self.fixed.median / self.stopping.median

    @property
    def reached(self) -> bool:
        """Whether it is fast enough."""
        return self.speedup >= 1.5


@dataclass(frozen=True)
class Backward:
    """Cost of an implicit gradient, compared with unrolling."""

    layer: str
    size: int
    sets: int
    short_steps: int
    long_steps: int
    short_bytes: int
    long_bytes: int
    cg_steps: int
    fallback: float
    implicit: Timing
    """Of the backward pass at `long_steps`."""

    unrolled: Timing
    """Of the backward pass at `long_steps`."""

    @property
    def memory_ratio(self) -> float:
        return self.long_bytes / self.short_bytes

    @property
    def step_ms(self) -> float:
        """Backward pass of one unrolled step."""
        return self.unrolled.median / self.long_steps

    @property
    def time_ratio(self) -> float:
        """Compared with three backward passes of an unrolled step per conjugate gradient step."""
        return self.implicit.median / (3 * self.step_ms * self.cg_steps)

    @property
    def missed(self) -> list[str]:
        """The limits that are exceeded."""
        found = {"memory": self.memory_ratio <= 1.2, "time": self.time_ratio <= 1}
        return [name for name, reached in found.items() if not reached]


ROWS: dict[str, type] = {
    "training": Training, "quality": Quality, "cost": Cost, "solvers": Solve, "stopping": Stopping,
    "backward": Backward,
}  # fmt: skip


@dataclass(frozen=True)
class GradientRecord:
    """A run. Parts that were not measured have no rows."""

    command: str
    date: str
    commit: str
    versions: dict[str, str]
    hardware: dict[str, str | int]
    training: list[Training] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    cost: list[Cost] = field(default_factory=list)
    solvers: list[Solve] = field(default_factory=list)
    stopping: list[Stopping] = field(default_factory=list)
    backward: list[Backward] = field(default_factory=list)
    kind: str = "gradients"
    format: int = FORMAT

    def write(self, file: Path) -> None:
        """Write it as JSON that can be compared line by line."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")


def read_gradient_record(file: Path) -> GradientRecord:
    """Read what `GradientRecord.write` wrote."""
    content = read_content(file)
    if content.get("kind") != "gradients":
        raise ValueError(f"{file} has kind {content.get('kind')}, expected gradients")
    for name, kind in ROWS.items():
        content[name] = [_row(kind, row) for row in content[name]]
    return GradientRecord(**content)


def finite(value: float) -> float | None:
    """None for values that JSON cannot hold."""
    return value if math.isfinite(value) else None


def _row(kind: type, content: dict[str, Any]) -> Any:
    timings = {name: Timing(**part) for name, part in content.items() if isinstance(part, dict)}
    return kind(**(content | timings))
