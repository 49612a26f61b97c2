"""Checkpoints: tensors as safetensors, the rest as JSON, each with its checksum; and files that
are complete or absent, whenever the process is killed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

FORMAT = 2
STATE = "state.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors that making room ends


class StorageError(OSError):
    """A file could not be written. What was there before is untouched."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a `StorageError` that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "; make room and resume" if error.errno in FULL else ""
        text = f"could not write {path.name}: {reason}. What was saved before is untouched{advice}"
        raise StorageError(error.errno, text, str(path)) from error


def check_writable(file: str | Path) -> None:
    """Raise a `StorageError` if a file cannot be written here. Leaves nothing behind."""
    file = Path(file)
    if file.is_dir():
        raise StorageError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    folder = next(one for one in file.absolute().parents if one.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(error.errno, f"cannot write to {folder}: {reason}", str(file)) from error


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with naming(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the directory's entries are on the disk."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_durably(source: Path, target: Path) -> None:
    """Rename a file or directory atomically, and wait until that is on the disk."""
    with naming(target):
        os.replace(source, target)
    sync_directory(target.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is the old or the new one at every moment."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write_durably(partial, content)
        replace_durably(partial, path)
    except StorageError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def jsonable(content: Any) -> Any:
    """The same content with None for numbers that are not finite, which JSON cannot hold."""
    if isinstance(content, dict):
        return {key: jsonable(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [jsonable(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def to_json(content: Any) -> bytes:
    """JSON with a line per value, easy to compare."""
    return (json.dumps(jsonable(content), indent=1, allow_nan=False) + "\n").encode()


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def signed_json(content: dict[str, Any]) -> bytes:
    """An object as JSON with its own checksum under `sha256`."""
    return to_json(content | {"sha256": json_checksum(content)})


def json_checksum(content: dict[str, Any]) -> str:
    """The checksum of an object as JSON holds it, whatever its layout."""
    return checksum(json.dumps(content, sort_keys=True).encode())


Groups = Mapping[str, Mapping[str, Tensor]]  # of tensors: by file, then by name


class BrokenCheckpointError(ValueError):
    """A checkpoint is damaged, missing, or of another run."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]  # by file, without its suffix
    run: str | None = None  # id of the run; older versions wrote none

    @property
    def step(self) -> int:
        return int(self.state["step"])


def write_checkpoint(
    path: Path, tensors: Groups, state: dict[str, Any], run: str | None = None
) -> None:
    """Write a directory `path` with a file per group of tensors.

    Everything is written under another name and renamed when it is on the disk, so a checkpoint
    at `path` is always complete.
    """
    partial, old = (path.with_name(f".{path.name}.{suffix}") for suffix in ("partial", "old"))
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write_parts(partial, tensors, {"run": run, "state": jsonable(state)})
        if path.exists():  # damaged, or of steps that are repeated
            shutil.rmtree(old, ignore_errors=True)
            replace_durably(path, old)
        replace_durably(partial, path)
        shutil.rmtree(old, ignore_errors=True)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # makes room
        raise


def _write_parts(folder: Path, tensors: Groups, content: dict[str, Any]) -> None:
    from safetensors.torch import save

    with naming(folder):
        folder.mkdir(parents=True)
    sums = {}
    for name, group in tensors.items():
        # clones, because the format refuses tensors that share memory
        own = {key: value.detach().cpu().contiguous().clone() for key, value in group.items()}
        data = save(own)
        sums[f"{name}.safetensors"] = checksum(data)
        write_durably(folder / f"{name}.safetensors", data)
    write_durably(folder / STATE, signed_json({"format": FORMAT, "files": sums} | content))
    sync_directory(folder)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and verify every byte; nothing is unpickled."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = _read_state(path / STATE)
    tensors = {}
    for name, expected in content["files"].items():
        data = _read(path / name)
        if checksum(data) != expected:
            raise BrokenCheckpointError(f"{path / name} is damaged: its checksum does not match")
        try:
            tensors[Path(name).stem] = load(data)
        except SafetensorError as error:
            raise BrokenCheckpointError(f"{path / name} is damaged: {error}") from error
    return Checkpoint(path, content["state"], tensors, content.get("run"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BrokenCheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _read_state(file: Path) -> dict[str, Any]:
    data = _read(file)
    try:
        content = json.loads(data)
        expected = content.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BrokenCheckpointError(f"{file} is damaged: {error}") from error
    if json_checksum(content) != expected:
        raise BrokenCheckpointError(f"{file} is damaged: its checksum does not match")
    if content["format"] != FORMAT:
        raise BrokenCheckpointError(f"{file} has format {content['format']}, expected {FORMAT}")
    return content


@dataclass(frozen=True)
class Best:
    step: int
    value: float


class Checkpoints:
    """The checkpoints of a run: `folder/checkpoints/step-XXXXXXXX`, with the pointers
    `folder/last.json` and `folder/best.json`. Keeps the `keep_last` latest and the best."""

    def __init__(self, folder: Path, keep_last: int = 2) -> None:
        self.folder = folder
        self.root = folder / "checkpoints"
        self.keep_last = keep_last

    @cached_property
    def run(self) -> str | None:
        """The id in config.json: checkpoints with another one are refused. Older versions wrote no
        ids, neither there nor in checkpoints."""
        try:
            return json.loads((self.folder / "config.json").read_bytes())["run"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def path(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps that have checkpoints, intact or damaged, in order."""
        names = (path.name for path in self.root.glob("step-*"))
        return sorted(int(name[5:]) for name in names if name[5:].isdigit())

    def save(self, tensors: Groups, state: dict[str, Any], best: Best | None) -> None:
        """Write the checkpoint of `state["step"]`, then the pointers, then remove old ones."""
        step = int(state["step"])
        write_checkpoint(self.path(step), tensors, state, self.run)
        self.point(step, best)
        self._prune(step, best)

    def point(self, step: int, best: Best | None) -> None:
        """Write the pointers to the last and the best checkpoint."""
        pointers: dict[str, dict[str, Any]] = {"last": {"step": step}}
        if best is not None and self.path(best.step).exists():
            pointers["best"] = {"step": best.step, "value": best.value}
        for which, content in pointers.items():
            content["checkpoint"] = f"checkpoints/{self.path(content['step']).name}"
            write_atomically(self.folder / f"{which}.json", to_json(content))

    def _prune(self, step: int, best: Best | None) -> None:
        earlier = [other for other in self.steps() if other <= step]
        kept = {*earlier[-self.keep_last :], best.step if best else step}
        for path in (self.path(other) for other in earlier if other not in kept):
            with suppress(OSError):  # keeping it does no harm
                shutil.rmtree(path.rename(path.with_name(f".{path.name}.old")))

    def clean(self) -> None:
        """Remove what a killed process left unfinished."""
        for path in self.root.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def read_step(self, step: int) -> Checkpoint:
        """The checkpoint of a step; refused if it belongs to another run."""
        found = read_checkpoint(self.path(step))
        if None not in (self.run, found.run) and found.run != self.run:
            raise BrokenCheckpointError(f"{found.path} belongs to another run")
        if found.step != step:
            raise BrokenCheckpointError(f"{found.path} is the checkpoint of step {found.step}")
        return found

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest intact checkpoint of this run; warns about those that are not.

        None if nothing was ever saved. An error if there were checkpoints and none is left.
        """
        broken: list[str] = []
        for step in reversed(self.steps()):
            try:
                found = self.read_step(step)
            except BrokenCheckpointError as error:
                broken.append(str(error))
                continue
            if found.step < self._step_of("last", default=0) and not broken:
                broken.append(f"the checkpoint that {self.folder / 'last.json'} names is missing")
            for problem in broken:
                warn(f"{problem}. Using the checkpoint of step {found.step} instead")
            return found
        if not broken and not (self.folder / "last.json").exists():
            return None
        problem = broken[0] if broken else f"the checkpoints in {self.root} are missing"
        advice = f"Restore one; or, to start again from step 0, remove {self.folder}"
        raise BrokenCheckpointError(f"{problem}, and no intact checkpoint is left. {advice}")

    def read(self, which: str, warn: Callable[[str], None]) -> Checkpoint:
        """The `"last"` or the `"best"` checkpoint; the last one if there is no best."""
        if which not in ("last", "best"):
            raise ValueError(f"which is {which!r}, expected 'best' or 'last'")
        if which == "best" and (self.folder / "best.json").exists():
            try:
                return self.read_step(self._step_of("best"))
            except BrokenCheckpointError as error:
                how = "Use the newest intact one instead: which='last' (--which last)"
                raise BrokenCheckpointError(f"{error}. {how}") from error
        found = self.newest(warn)
        if found is None:
            raise FileNotFoundError(f"{self.root} has no checkpoint")
        return found

    def _step_of(self, which: str, default: int | None = None) -> int:
        """The step that a pointer names; the default if there is no pointer, or it is damaged."""
        pointer = self.folder / f"{which}.json"
        try:
            return int(json.loads(pointer.read_bytes())["step"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if default is not None:
                return default
            text = f"{pointer} is damaged: it does not name the step of a checkpoint"
            raise BrokenCheckpointError(text) from error
