"""What `equipool bench gradients` found, as a JSON file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from equipool.bench.outcome import Timing

FORMAT = 1

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
    """How near a way's gradient is to the exact one. None where one of them is not finite."""

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
    """A batch of which half the sets converge early, with and without stopping them."""

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
        """Whether it is as much faster as it is held to be."""
        return self.speedup >= 1.5


@dataclass(frozen=True)
class Backward:
    """What an implicit gradient costs, beside unrolling."""

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
    """Of the backward pass at `long_steps`, of as many steps."""

    @property
    def memory_ratio(self) -> float:
        return self.long_bytes / self.short_bytes

    @property
    def step_ms(self) -> float:
        """Of one unrolled step's backward pass."""
        return self.unrolled.median / self.long_steps

    @property
    def time_ratio(self) -> float:
        """To three times an unrolled step's backward pass for each step of conjugate gradients."""
        return self.implicit.median / (3 * self.step_ms * self.cg_steps)

    @property
    def missed(self) -> list[str]:
        """What is above what it is held to."""
        found = {"memory": self.memory_ratio <= 1.2, "time": self.time_ratio <= 1}
        return [name for name, reached in found.items() if not reached]


ROWS: dict[str, type] = {
    "training": Training, "quality": Quality, "cost": Cost, "solvers": Solve, "stopping": Stopping,
    "backward": Backward,
}  # fmt: skip


@dataclass(frozen=True)
class GradientRecord:
    """A run, of all parts or of some: those that were not asked for have no rows."""

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
        """As JSON that is pleasant to compare line by line."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")


def read_gradient_record(file: Path) -> GradientRecord:
    """Read what `GradientRecord.write` wrote."""
    content: dict[str, Any] = json.loads(file.read_text())
    found = content.get("kind"), content.get("format")
    if found != ("gradients", FORMAT):
        raise ValueError(f"{file} is of kind and format {found}, expected ('gradients', {FORMAT})")
    for name, kind in ROWS.items():
        content[name] = [_row(kind, row) for row in content[name]]
    return GradientRecord(**content)


def finite(value: float) -> float | None:
    """What JSON has no word for is None."""
    return value if math.isfinite(value) else None


def _row(kind: type, content: dict[str, Any]) -> Any:
    timings = {name: Timing(**part) for name, part in content.items() if isinstance(part, dict)}
    return kind(**(content | timings))
