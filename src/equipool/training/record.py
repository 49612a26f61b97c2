"""How far a run is, and its summary."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipool.files import FileError, write_json
from equipool.training.checkpoint import Checkpoint

SPIKE = 10.0  # a loss this many times the running median is a spike
WINDOW = 1000  # finite losses that the median is taken over
FEWEST = 100  # finite losses before the first possible spike

RECENT = "losses/recent"  # in the tensors of a checkpoint


@dataclass(frozen=True)
class Record:
    """The summary of a run, written on completion as `record.json`.

    `seconds` is wall-clock time, summed over all parts of a resumed run; `training_seconds`
    excludes all evaluations. `versions` and `hardware` are those of the last part, and `ran_on` has
    those of each part with its number of `steps`.

    `metrics` are those of the last evaluation, `best` is the best entry of `curve`, and each entry
    of `curve` is an evaluation: `step`, `seconds`, `training_seconds`, `metrics`. `spikes` counts
    steps whose loss was far above the usual (see `count_spikes`), `skipped` the steps that the
    guard skipped. `warning` is a reason to doubt the result.
    """

    task: str
    seed: int
    config: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str | int]
    date: str
    steps: int
    complete: bool
    seconds: float
    training_seconds: float
    num_parameters: int
    metrics: dict[str, float | None]
    best: dict[str, Any] | None
    curve: list[dict[str, Any]]
    spikes: int
    skipped: int
    ran_on: list[dict[str, Any]] = field(default_factory=list)
    warning: str | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing came of the run: every step was skipped, or no evaluation gave a finite
        value of the monitored metric."""
        all_skipped = self.steps > 0 and self.skipped >= self.steps
        return all_skipped or (bool(self.curve) and self.best is None)

    def write(self, file: str | Path) -> None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        write_json(file, asdict(self))


def read_record(file: str | Path) -> Record:
    """Read what `Record.write` wrote."""
    try:
        return Record(**json.loads(Path(file).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise FileError(f"{file} is not the record of a run: {error}") from error


@dataclass
class RunState:
    """How far a run is. Checkpoints hold this, and the tensors of the training step."""

    step: int = 0
    seconds: float = 0.0  # over all parts of a resumed run
    evaluation_seconds: float = 0.0
    skipped: int = 0
    spikes: int = 0
    logged_step: int = 0  # steps before this one are in the log
    best: dict[str, Any] | None = None  # `step` and `value` of the best evaluation
    curve: list[dict[str, Any]] = field(default_factory=list)  # an entry per evaluation
    parts: list[dict[str, Any]] = field(default_factory=list)  # `first_step`, hardware, versions
    recent_losses: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def from_checkpoint(cls, found: Checkpoint) -> RunState:
        return cls(**found.state, recent_losses=found.tensors[RECENT])

    def to_json(self) -> dict[str, Any]:
        content = dict(vars(self))
        del content["recent_losses"]
        return content

    @property
    def training_seconds(self) -> float:
        return self.seconds - self.evaluation_seconds

    def times(self) -> dict[str, Any]:
        """Step and seconds, as each entry of the log has them."""
        return {name: getattr(self, name) for name in ("step", "seconds", "training_seconds")}

    def add_steps(self, columns: dict[str, Tensor]) -> list[int]:
        """Count the spikes and skipped steps since `logged_step`; returns the skipped steps."""
        losses = columns["loss"]
        self.spikes += count_spikes(losses, self.recent_losses)
        finite = losses[torch.isfinite(losses)]
        self.recent_losses = torch.cat([self.recent_losses, finite])[-WINDOW:]
        rows = columns["skipped"].nonzero().flatten().tolist()
        skipped = [self.logged_step + row for row in rows]
        self.skipped += len(skipped)
        self.logged_step = self.step
        return skipped

    def add_evaluation(self, entry: dict[str, Any], value: float, lower_is_better: bool) -> bool:
        """Add an evaluation to the curve; returns whether its `value` is the best so far."""
        self.curve.append(entry)
        sign = 1 if lower_is_better else -1
        if not math.isfinite(value) or (self.best and sign * value >= sign * self.best["value"]):
            return False
        self.best = {"step": self.step, "value": value}
        return True

    def ran_on(self) -> list[dict[str, Any]]:
        """Steps, hardware and versions of each part of a resumed run."""
        ends = [*(part["first_step"] for part in self.parts[1:]), self.step]
        return [
            {"steps": end - part["first_step"]}
            | {name: part[name] for name in ("hardware", "versions")}
            for part, end in zip(self.parts, ends, strict=True)
        ]


def count_spikes(losses: Tensor, before: Tensor | None = None) -> int:
    """The number of spikes in a training, the only definition in this package.

    A loss is a spike if it is finite and more than 10 times the median of the last 1,000 finite
    losses before it. The first 100 finite losses are never spikes.

    Args:
        losses: one per step `[steps]`.
        before: the last finite losses before those, if any.

    Example:
        >>> losses = torch.ones(300)
        >>> losses[50], losses[200], losses[250] = 99.0, 99.0, torch.inf
        >>> count_spikes(losses)
        1
    """
    before = losses.new_zeros(0) if before is None else before
    known, count = torch.cat([before, losses[torch.isfinite(losses)]]), 0
    for start in range(max(len(before), FEWEST), len(known), WINDOW):
        block = known[start : start + WINDOW]
        around = known[max(start - WINDOW, 0) : start + WINDOW]
        # Windows are subsets of `around`, so no median is below this; most losses need no more.
        floor = around.kthvalue((min(start, WINDOW) + 1) // 2).values
        for at in (block > SPIKE * floor).nonzero().flatten().tolist():
            window = known[max(start + at - WINDOW, 0) : start + at]
            count += bool(block[at] > SPIKE * window.median())
    return count


def summarize(columns: dict[str, Tensor], metrics: Sequence[str]) -> dict[str, Any]:
    """A point of the log: means over the steps that were taken, and the largest loss of all.
    `columns` has one number per step `[n]`, by name; `metrics` are the task's among the names."""
    taken = columns["skipped"] == 0
    means = {
        name: float(values[taken].double().mean()) if taken.any() else None
        for name, values in columns.items()
        if name != "skipped"
    }
    of_task = {name: means.pop(name) for name in metrics}
    return {**means, "loss_max": float(columns["loss"].max()), "metrics": of_task}
