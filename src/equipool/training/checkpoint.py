"""Checkpoints: tensors as safetensors, the rest as JSON, each with its checksum."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equipool.training.files import (
    jsonable,
    naming,
    replace_durably,
    sync_directory,
    to_json,
    write_atomically,
    write_durably,
)

FORMAT = 2
STATE = "state.json"

Tensors = Mapping[str, Tensor]


class BrokenCheckpointError(ValueError):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What was read from a checkpoint."""

    path: Path
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]  # by file, without its ending

    @property
    def step(self) -> int:
        return int(self.state["step"])


def write_checkpoint(path: Path, tensors: Mapping[str, Tensors], state: dict[str, Any]) -> None:
    """Write a directory `path` with a file for each group of tensors.

    Everything is written under another name, and the name is given when the disk has all of it. So
    what is found at `path` is always whole.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write_parts(partial, tensors, state)
        _put(partial, path)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # makes room
        raise


def _write_parts(folder: Path, tensors: Mapping[str, Tensors], state: dict[str, Any]) -> None:
    with naming(folder):
        folder.mkdir(parents=True)
    sums = {}
    for name, group in tensors.items():
        content = _to_bytes(group)
        sums[f"{name}.safetensors"] = _checksum(content)
        write_durably(folder / f"{name}.safetensors", content)
    whole = {"format": FORMAT, "files": sums, "state": jsonable(state)}
    write_durably(folder / STATE, to_json(whole | {"sha256": _state_checksum(whole)}))
    sync_directory(folder)


def _put(partial: Path, path: Path) -> None:
    if path.exists():  # of a piece that could not be read, or was gone back behind
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        replace_durably(path, old)
        replace_durably(partial, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        replace_durably(partial, path)


def _to_bytes(tensors: Tensors) -> bytes:
    from safetensors.torch import save

    # clones, as the format has no word for tensors that share memory
    return save(
        {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    )


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _state_checksum(content: dict[str, Any]) -> str:
    return _checksum(json.dumps(content, sort_keys=True).encode())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check every byte; nothing is unpickled."""
    from safetensors.torch import load

    content = _read_state(path)
    tensors = {}
    for name, expected in content["files"].items():
        data = _read(path / name)
        if _checksum(data) != expected:
            raise BrokenCheckpointError(f"{path / name} is damaged: its checksum does not match")
        tensors[Path(name).stem] = load(data)
    return Checkpoint(path, content["state"], tensors)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BrokenCheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _read_state(path: Path) -> dict[str, Any]:
    file = path / STATE
    try:
        content = json.loads(_read(file))
        expected = content.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        if isinstance(error, BrokenCheckpointError):
            raise
        raise BrokenCheckpointError(f"{file} is damaged: {error}") from error
    if _state_checksum(content) != expected:
        raise BrokenCheckpointError(f"{file} is damaged: its checksum does not match")
    if content["format"] != FORMAT:
        raise BrokenCheckpointError(f"{file} has format {content['format']}, expected {FORMAT}")
    return content


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    step: int
    value: float


class Checkpoints:
    """The checkpoints of a run: `folder/checkpoints/step-XXXXXXXX`, with the pointers
    `folder/last.json` and `folder/best.json`.

    Args:
        folder: the run's directory.
        keep_last: how many of the latest are kept; the best is kept beside them.
    """

    def __init__(self, folder: Path, keep_last: int = 2) -> None:
        self.folder = folder
        self.root = folder / "checkpoints"
        self.keep_last = keep_last

    def path(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps of which there are checkpoints, whole or damaged, in order."""
        names = (path.name for path in self.root.glob("step-*"))
        return sorted(int(name[5:]) for name in names if name[5:].isdigit())

    def save(
        self, tensors: Mapping[str, Tensors], state: dict[str, Any], best: Best | None
    ) -> None:
        """Write the checkpoint of `state["step"]`, then the pointers, then drop what is old."""
        step = int(state["step"])
        write_checkpoint(self.path(step), tensors, state)
        self.point(step, best)
        self._prune(step, best)

    def point(self, step: int, best: Best | None) -> None:
        """Let the pointers name the last checkpoint and the best."""
        self._write_pointer("last", step, {})
        if best is not None and self.path(best.step).exists():
            self._write_pointer("best", best.step, {"value": best.value})

    def _write_pointer(self, which: str, step: int, more: dict[str, Any]) -> None:
        content = {"step": step, "checkpoint": f"checkpoints/{self.path(step).name}"} | more
        write_atomically(self.folder / f"{which}.json", to_json(content))

    def _prune(self, step: int, best: Best | None) -> None:
        latest = [other for other in self.steps() if other <= step][-self.keep_last :]
        kept = {*latest, *([best.step] if best else [])}
        for other in self.steps():
            if other < step and other not in kept:
                doomed = self.path(other).with_name(f".{self.path(other).name}.old")
                with suppress(OSError):  # nothing is lost by keeping it
                    self.path(other).rename(doomed)
                    shutil.rmtree(doomed)

    def clean(self) -> None:
        """Remove what a process that was killed left unfinished."""
        for path in self.root.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that is whole; `say` hears of those that are not. None where there
        are no checkpoints; an error where there are, and none is whole."""
        broken: list[BrokenCheckpointError] = []
        for step in reversed(self.steps()):
            try:
                found = read_checkpoint(self.path(step))
            except BrokenCheckpointError as error:
                broken.append(error)
                continue
            for damage in broken:
                say(f"{damage}. The checkpoint before it is used")
            return found
        if broken:
            raise BrokenCheckpointError(
                f"{broken[0]}, and there is no other checkpoint that is whole. "
                f"To start again from step 0, remove {self.root}"
            )
        return None

    def read(self, which: str, say: Callable[[str], None]) -> Checkpoint:
        """The checkpoint that is the `"last"` or the `"best"`."""
        if which not in ("last", "best"):
            raise ValueError(f"which is {which!r}, expected 'best' or 'last'")
        found = None if which == "last" else self._best()
        found = found or self.newest(say)
        if found is None:
            raise FileNotFoundError(f"{self.root} has no checkpoint")
        return found

    def _best(self) -> Checkpoint | None:
        pointer = self.folder / "best.json"
        if not pointer.exists():
            return None
        try:
            step = int(json.loads(pointer.read_text(encoding="utf-8"))["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenCheckpointError(
                f"{pointer} is damaged: it does not name the step of a checkpoint"
            ) from error
        return read_checkpoint(self.path(step))
