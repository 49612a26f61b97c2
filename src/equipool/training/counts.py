"""The part of a run's state that the host keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from equipool.training.checkpoint import Best


@dataclass
class Counts:
    """How far a run is."""

    step: int = 0
    seconds: float = 0.0  # of the pieces before this one and of this one
    evaluation_seconds: float = 0.0
    skipped: int = 0
    spikes: int = 0
    best: Best | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)
    pieces: list[dict[str, Any]] = field(default_factory=list)  # first step, and what it ran on

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Counts:
        best = content["best"]
        return cls(**(content | {"best": None if best is None else Best(**best)}))
