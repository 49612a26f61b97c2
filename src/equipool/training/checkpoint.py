"""The directory of a run: its settings, its lock and its checkpoints."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equipool.environment import versions
from equipool.files import FileError, load_tensors, naming, save_tensors, write_json
from equipool.training.config import differences, extended

KIND = "equipool checkpoint 3"
PARTS = {"task": str, "fields": dict, "training": dict}  # of config.json


class ConfigMismatchError(ValueError):
    """The directory holds a run with other settings."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    state: dict[str, Any]
    tensors: dict[str, Tensor]  # named `model/...`, `optimizer/...` and `average/...`

    @property
    def step(self) -> int:
        return int(self.state["step"])

    @property
    def best(self) -> int | None:
        """The step of the best evaluation so far."""
        best = self.state["best"]
        return None if best is None else int(best["step"])


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
        """Create the directory and keep other processes from training in it inside the block.

        The system releases the lock when the process ends, however that happens. If no run was
        started inside the block, the directory is left as it was.
        """
        from filelock import FileLock, Timeout

        file = self.path / "lock"
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file, blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise BlockingIOError(f"another process is training in {self.path}") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # no locks on this file system
                with naming(file):
                    raise
        try:
            yield
        finally:
            if not self.config.exists():
                file.unlink(missing_ok=True)
                with suppress(OSError):  # it has files of the user
                    self.path.rmdir()
            lock.release()

    def check(self, config: dict[str, Any], resume: bool) -> None:
        """Check that a run with these settings can start or resume here."""
        if not resume and any(path.exists() for path in (self.config, self.checkpoints, self.log)):
            how = "resume it (resume=True, --resume) or choose another directory"
            raise FileExistsError(f"{self.path} already holds a run: {how}")
        if not self.config.exists():
            return
        saved = self.read_config()
        if different := differences(extended(saved, config), config):
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
        if longer["training"] != saved["training"]:
            write_json(self.config, longer)
            self.record.unlink(missing_ok=True)  # of the shorter run
        for unfinished in self.path.rglob(".*.partial"):
            unfinished.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove a run that was started here but has not taken a step."""
        for file in (self.config, self.log):
            file.unlink(missing_ok=True)

    def read_config(self) -> dict[str, Any]:
        if not self.config.exists():
            raise FileNotFoundError(f"{self.path} holds no run: it has no config.json")
        try:
            content = json.loads(self.config.read_bytes())
        except ValueError as error:
            raise FileError(f"{self.config} is not JSON: {error}") from error
        parts = content if isinstance(content, dict) else {}
        if not all(isinstance(parts.get(name), kind) for name, kind in PARTS.items()):
            expected = f"expected {', '.join(PARTS)} in it"
            raise FileError(f"{self.config} is not the config of a run: {expected}")
        return parts

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """The steps that have checkpoints, intact or damaged, in order."""
        names = (path.stem[5:] for path in self.checkpoints.glob("step-*.safetensors"))
        return sorted(int(name) for name in names if name.isdigit())

    def save(
        self, tensors: Mapping[str, Tensor], state: dict[str, Any], config: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint of `state["step"]`, then remove those before it, except for the
        one before and the best."""
        step, best = int(state["step"]), state["best"]
        with naming(self.checkpoints):
            self.checkpoints.mkdir(exist_ok=True)
        save_tensors(self.checkpoint(step), tensors, {"config": config, "state": state}, KIND)
        earlier = [other for other in self.steps() if other <= step]
        kept = {*earlier[-2:], best["step"] if best else step}
        for other in earlier:
            if other not in kept:
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
        if content["state"]["step"] != step:
            raise FileError(f"{path} is the checkpoint of step {content['state']['step']}")
        return Checkpoint(path, content["state"], tensors)

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
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
                warn(f"{problem}. Using the checkpoint of step {step} instead")
            return found
        if not broken and not self.record.exists():
            return None
        problem = broken[0] if broken else f"the checkpoints in {self.checkpoints} are missing"
        advice = f"Restore one; or, to start again from step 0, remove {self.path}"
        raise FileError(f"{problem}, and no intact checkpoint is left. {advice}")

    def read(self, which: str, warn: Callable[[str], None]) -> Checkpoint:
        """The `"last"` or the `"best"` checkpoint; the last one if no evaluation was finite."""
        if which not in ("last", "best"):
            raise ValueError(f"which is {which!r}, expected 'best' or 'last'")
        found = self.newest(warn)
        if found is None:
            raise FileNotFoundError(f"{self.path} has no checkpoint")
        if which == "last" or found.best in (None, found.step):
            return found
        try:
            return self.read_step(found.best)
        except FileError as error:
            how = "Use the newest intact one instead: which='last' (--which last)"
            raise FileError(f"{error}. {how}") from error
