"""A run and its directory: how far it is, its settings, its lock and its record."""

from __future__ import annotations

import errno
import json
import math
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipool.environment import versions
from equipool.training.checkpoint import (
    Best,
    Checkpoint,
    json_checksum,
    naming,
    signed_json,
    to_json,
    write_atomically,
)
from equipool.training.config import depends_on_steps, differences, extended

LEFT_BY_RUNS = ("checkpoints", "log.jsonl", "last.json", "best.json", "record.json")
PARTS = {"task": str, "fields": dict, "training": dict}  # of config.json
FORMAT = 1  # of record.json

SPIKE = 10.0  # a loss this many times the running median is a spike
WINDOW = 1000  # finite losses that the median is taken over
FEWEST = 100  # finite losses before the first possible spike

RECENT = "spikes/recent"  # the tensor of recent losses in a checkpoint


class ConfigMismatchError(ValueError):
    """The directory holds a run with other settings."""


class RunFolder:
    """`config.json`, `log.jsonl`, `checkpoints/`, `last.json`, `best.json`, `record.json`,
    `tensorboard/`, and the empty `lock`.

    `config.json` also has the run's id (`run`), which its checkpoints repeat, and a checksum.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.log = self.path / "log.jsonl"
        self.record = self.path / "record.json"
        self.tensorboard = self.path / "tensorboard"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and keep other processes from training in it inside the block.

        The system releases the lock when the process ends, however that happens. If no run was
        started inside the block, what was created is removed.
        """
        from filelock import FileLock, Timeout

        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        file = self.path / "lock"
        lock = FileLock(file, blocking=False)
        try:
            with naming(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                raise BlockingIOError(f"another process is training in {self.path}") from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # no locks on this file system
                    with naming(file):
                        raise
            yield
        finally:
            if lock.is_locked and not self.config.exists():
                file.unlink(missing_ok=True)
            lock.release()
            for path in created:
                with suppress(OSError):  # it is used
                    path.rmdir()

    def check(self, config: dict[str, Any], resume: bool) -> None:
        """Check that a run with these settings can start or resume here."""
        if not self.config.exists():
            if found := [name for name in LEFT_BY_RUNS if (self.path / name).exists()]:
                raise FileExistsError(
                    f"{self.path} has {', '.join(found)} but no config.json, so the settings of "
                    "that run are unknown: restore config.json or choose another directory"
                )
            return
        if not resume:
            how = "resume it (resume=True, --resume) or choose another directory"
            raise FileExistsError(f"{self.path} already holds a run: {how}")
        saved = self.read_config()
        if different := differences(extended(saved, config), config):
            lines = (f"\n  {line}{_reason(line, saved)}" for line in different)
            advice = "Use the same settings or choose another directory"
            problem = f"{self.path} was started with other settings"
            raise ConfigMismatchError(f"{problem}. {advice}:{''.join(lines)}")

    def claim(self, config: dict[str, Any]) -> None:
        """Write config.json if this run is new or has more steps than before."""
        if not self.config.exists():
            started = config | {"versions": versions(), "run": uuid.uuid4().hex}
            write_atomically(self.config, signed_json(started))
        saved = self.read_config()
        longer = extended(saved, config)
        if longer["training"] != saved["training"]:
            write_atomically(self.config, signed_json(longer))
            self.record.unlink(missing_ok=True)  # of the shorter run

    def discard(self) -> None:
        """Remove a run that was started here but has not taken a step."""
        for file in (self.config, self.log):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.tensorboard, ignore_errors=True)

    def read_config(self) -> dict[str, Any]:
        if not self.config.exists():
            raise FileNotFoundError(f"{self.path} holds no run: it has no config.json")
        try:
            content = json.loads(self.config.read_bytes())
        except ValueError as error:
            raise ValueError(f"{self.config} is not JSON: {error}") from error
        parts = content if isinstance(content, dict) else {}
        if not all(isinstance(parts.get(name), kind) for name, kind in PARTS.items()):
            expected = f"expected {', '.join(PARTS)} in it"
            raise ValueError(f"{self.config} is not the config of a run: {expected}")
        signed = parts.pop("sha256", None)  # runs of older versions have none
        if signed is not None and json_checksum(parts) != signed:
            raise ValueError(
                f"{self.config} was changed after the run started: its checksum does not match. "
                'Restore it; or, if you edited it on purpose, remove its "sha256" entry'
            )
        return parts


def _reason(line: str, saved: dict[str, Any]) -> str:
    if not line.startswith("training.steps:"):
        return ""
    dependent = depends_on_steps(saved["training"])
    if dependent is None:
        return ", and a run can be extended but not shortened"
    return f", and its {dependent} depends on the number of steps: start a new run"


@dataclass(frozen=True)
class Record:
    """The summary of a run, written on completion as `record.json`.

    `seconds` is wall-clock time, summed over all parts of a resumed run; `training_seconds`
    excludes all evaluations, also those of runs trained together with it. `together` is the number
    of runs that shared the device in this process; other processes are unknown. `versions`,
    `hardware` and `together` are those of the last part, and `ran_on` has those of each part with
    its number of `steps`.

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
    pieces: int
    together: int
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
    format: int = FORMAT

    @property
    def failed(self) -> bool:
        """Whether nothing came of the run: every step was skipped, or no evaluation gave a finite
        value of the monitored metric."""
        all_skipped = self.steps > 0 and self.skipped >= self.steps
        return all_skipped or (bool(self.curve) and self.best is None)

    def write(self, file: str | Path) -> None:
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, to_json(asdict(self)))


def read_record(file: str | Path) -> Record:
    """Read what `Record.write` wrote."""
    try:
        content: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {content.get('format')}, expected {FORMAT}")
        return Record(**content)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not the record of a run: {error}") from error


@dataclass
class RunState:
    """How far a run is. Checkpoints hold this, and the tensors of the training step."""

    step: int = 0
    seconds: float = 0.0  # over all parts of a resumed run
    evaluation_seconds: float = 0.0
    skipped: int = 0
    spikes: int = 0
    logged_step: int = 0  # steps before this one are in the log
    best: Best | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)  # an entry per evaluation
    pieces: list[dict[str, Any]] = field(default_factory=list)  # first step and hardware per part
    recent_losses: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def from_checkpoint(cls, found: Checkpoint, log_every: int) -> RunState:
        """The state in a checkpoint; also in one that is older than `logged_step`."""
        step, best = found.step, found.state["best"]
        content = {"logged_step": step - step % log_every} | found.state
        content["best"] = None if best is None else Best(**best)
        return cls(**content, recent_losses=found.tensors["optimizer"][RECENT])

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
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
        self.spikes += _count_spikes(losses, self.recent_losses)
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
        if not math.isfinite(value) or (self.best and sign * value >= sign * self.best.value):
            return False
        self.best = Best(self.step, value)
        return True

    def parts(self) -> list[dict[str, Any]]:
        """Steps, hardware and versions of each part of a resumed run."""
        ends = [*(piece["first_step"] for piece in self.pieces[1:]), self.step]
        return [
            {"steps": end - piece["first_step"]}
            | {name: piece[name] for name in ("hardware", "together", "versions")}
            for piece, end in zip(self.pieces, ends, strict=True)
        ]


def count_spikes(losses: Tensor) -> Tensor:
    """The number of spikes in a training, the only definition in this package.

    A loss is a spike if it is finite and more than 10 times the median of the last 1,000 finite
    losses before it. The first 100 finite losses are never spikes.

    Args:
        losses: one per step `[steps]`, or of several trainings `[steps, S]`.

    Returns:
        A count, or `[S]` of them, int64.

    Example:
        >>> losses = torch.ones(300)
        >>> losses[50], losses[200], losses[250] = 99.0, 99.0, torch.inf
        >>> int(count_spikes(losses))
        1
    """
    if losses.dim() == 1:
        return torch.tensor(_count_spikes(losses, losses.new_zeros(0)))
    return torch.stack([count_spikes(column) for column in losses.unbind(1)])


def _count_spikes(losses: Tensor, before: Tensor) -> int:
    """The spikes among losses `[n]`, given the finite ones `before` them."""
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
