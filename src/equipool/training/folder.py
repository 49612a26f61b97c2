"""The directory of a run: its settings, its lock, its log, its checkpoints and its record."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from equipool.environment import versions
from equipool.files import (
    FileError,
    jsonable,
    load_tensors,
    naming,
    save_tensors,
    write_json,
    write_text,
)
from equipool.training.config import differences, extended

KIND = "equipool checkpoint 4"

# An entry of the log. Without an `event` it summarises training since the entry before it.
Entry = dict[str, Any]


class ConfigMismatchError(ValueError):
    """The directory holds a run with other settings."""


@dataclass(frozen=True)
class Checkpoint:
    state: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def step(self) -> int:
        return int(self.state["step"])


class RunFolder:
    """`config.json`, `log.jsonl`, `checkpoints/step-XXXXXXXX.safetensors`, `record.json` and the
    empty `lock`.

    Each checkpoint repeats the settings: one that does not belong to `config.json` is refused.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.log = self.path / "log.jsonl"
        self.record = self.path / "record.json"
        self.checkpoints = self.path / "checkpoints"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and keep other processes from training in it inside the block. The
        system releases the lock when the process ends, however that happens."""
        from filelock import FileLock, Timeout

        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / "lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise BlockingIOError(f"another process is training in {self.path}") from None
        try:
            yield
        finally:
            lock.release()

    def check(self, config: dict[str, Any], resume: bool) -> None:
        """Check that a run with these settings can start or resume here."""
        if not resume and any(path.exists() for path in (self.config, self.checkpoints, self.log)):
            how = "resume it (resume=True, --resume) or choose another directory"
            raise FileExistsError(f"{self.path} already holds a run: {how}")
        if not self.config.exists():
            return
        if different := differences(extended(self.read_config(), config), config):
            problem = f"{self.path} was started with other settings"
            advice = "Use the same settings or choose another directory; a run can be extended to "
            advice += "more steps if its learning rate and auxiliary weight are constant"
            lines = "".join(f"\n  {line}" for line in different)
            raise ConfigMismatchError(f"{problem}. {advice}:{lines}")

    def claim(self, config: dict[str, Any]) -> None:
        """Write config.json if this run is new or has more steps than before, and remove what a
        killed process left unfinished."""
        if not self.config.exists():
            write_json(self.config, config | {"versions": versions()})
        saved = self.read_config()
        longer = extended(saved, config)
        if longer is not saved:
            write_json(self.config, longer)
            self.record.unlink(missing_ok=True)  # of the shorter run
        for unfinished in self.path.rglob(".*.partial"):
            unfinished.unlink(missing_ok=True)

    def read_config(self) -> dict[str, Any]:
        if not self.config.exists():
            raise FileNotFoundError(f"{self.path} holds no run: it has no config.json")
        try:
            content = json.loads(self.config.read_bytes())
        except ValueError as error:
            raise FileError(f"{self.config} is not JSON: {error}") from error
        if not isinstance(content, dict) or not {"task", "fields", "training"} <= content.keys():
            raise FileError(f"{self.config} is not the config of a run")
        return content

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """The steps that have checkpoints, intact or damaged, in order."""
        return sorted(int(path.stem[5:]) for path in self.checkpoints.glob("step-*.safetensors"))

    def save(
        self, tensors: Mapping[str, Tensor], state: dict[str, Any], config: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint of `state["step"]`, then remove those before it, except for the
        one before and the best."""
        step, best = state["step"], state["best"]
        with naming(self.checkpoints):
            self.checkpoints.mkdir(exist_ok=True)
        save_tensors(self.checkpoint(step), tensors, {"config": config, "state": state}, KIND)
        earlier = [other for other in self.steps() if other <= step]
        for other in {*earlier[:-2]} - {best["step"] if best else step}:
            with suppress(OSError):  # keeping it does no harm
                self.checkpoint(other).unlink()

    def read_step(self, step: int) -> Checkpoint:
        """The checkpoint of a step; a `FileError` if it is damaged or of another run."""
        path = self.checkpoint(step)
        try:
            tensors, content = load_tensors(path, KIND)
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from error
        config, here = content["config"], self.read_config()
        if different := differences(extended(config, here), here):
            raise FileError(f"{path} belongs to a run with other settings: {', '.join(different)}")
        return Checkpoint(content["state"], tensors)

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint of this run; warns about those that are not.

        None if nothing was ever saved. An error if there were checkpoints and none is left.
        """
        broken: list[str] = []
        for step in reversed(self.steps()):
            try:
                found = self.read_step(step)
            except FileError as error:
                broken.append(str(error))
                continue
            for problem in broken:
                warnings.warn(f"{problem}. Using the checkpoint of step {step}", stacklevel=2)
            return found
        if not broken and not self.record.exists():
            return None
        problem = broken[0] if broken else f"the checkpoints in {self.checkpoints} are missing"
        advice = f"Restore one; or, to start again from step 0, remove {self.path}"
        raise FileError(f"{problem}, and no intact checkpoint is left. {advice}")

    def read(self, which: str) -> Checkpoint:
        """The `"last"` or the `"best"` checkpoint; the last one if no evaluation was finite."""
        if which not in ("last", "best"):
            raise ValueError(f"which is {which!r}, expected 'best' or 'last'")
        found = self.newest()
        if found is None:
            raise FileNotFoundError(f"{self.path} has no checkpoint")
        best = found.state["best"]
        if which == "last":
            return found
        if best is None:
            reason = "no evaluation gave a number"
            warnings.warn(f"{self.path}: {reason}, so the best is the last", stacklevel=2)
            return found
        try:
            return self.read_step(best["step"])
        except FileError as error:
            how = "Use the newest intact one instead: which='last' (--which last)"
            raise FileError(f"{error}. {how}") from error


def read_log(file: str | Path) -> list[Entry]:
    """All entries of a log, each with its `step`; an empty list if there is no log.

    Damaged lines are left out with a warning. A last line that was cut off is left out silently:
    the process was killed while it wrote.

    Args:
        file: `log.jsonl` of a run.
    """
    file = Path(file)
    entries = []
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            int(entry["step"])
            entries.append(entry)
        except (ValueError, LookupError, TypeError):
            if number < len(lines):
                text = f"line {number} of {file} is damaged and is left out"
                warnings.warn(text, stacklevel=2)
    return entries


class LogFile:
    """Appends to `log.jsonl`. Opening it at a step drops the entries of later steps, which are
    repeated."""

    def __init__(self, file: Path, step: int) -> None:
        self.file = file
        kept = [entry for entry in read_log(file) if entry["step"] <= step]
        write_text(file, "".join(map(_line, kept)))
        self._stream = file.open("ab", buffering=0)  # survives if the process is killed

    def write(self, entry: Entry) -> None:
        """Append an entry."""
        content = _line(entry).encode()
        with naming(self.file):
            while content:
                content = content[self._stream.write(content) :]

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        with naming(self.file):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


def _line(entry: Entry) -> str:
    return json.dumps(jsonable(entry), allow_nan=False) + "\n"


@dataclass(frozen=True)
class Record:
    """The summary of a run, written on completion as `record.json`.

    `seconds` is wall-clock time, summed over all parts of a resumed run; `training_seconds`
    excludes all evaluations. `versions` and `hardware` are those of the last part, and `ran_on` has
    those of each part with its number of `steps`.

    `metrics` are those of the last evaluation, `best` is the best entry of `curve`, and each entry
    of `curve` is an evaluation: `step`, `seconds`, `training_seconds`, `metrics`.
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
    ran_on: list[dict[str, Any]]

    @property
    def failed(self) -> bool:
        """Whether no evaluation gave a finite value of the monitored metric."""
        return bool(self.curve) and self.best is None

    def write(self, file: str | Path) -> None:
        write_json(file, asdict(self))


def read_record(file: str | Path) -> Record:
    """Read what `Record.write` wrote, now or in an earlier version."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        return Record(**{one.name: content[one.name] for one in fields(Record)})
    except (ValueError, TypeError, KeyError) as error:
        raise FileError(f"{file} is not the record of a run: {error!r}") from error
