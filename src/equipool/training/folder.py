"""The directory of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipool.environment import versions
from equipool.training.config import differences
from equipool.training.files import lock_file, naming, to_json, write_atomically

LEFT_BY_RUNS = ("checkpoints", "log.jsonl", "last.json", "best.json", "record.json")
PARTS = {"task": str, "fields": dict, "training": dict}  # of config.json


class ConfigMismatchError(ValueError):
    """The directory holds a run of another config."""


class RunFolder:
    """`config.json`, `log.jsonl`, `checkpoints/`, `last.json`, `best.json`, `record.json`, and
    `lock`, which is empty."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.log = self.path / "log.jsonl"
        self.record = self.path / "record.json"
        self.tensorboard = self.path / "tensorboard"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process can train in this directory inside the block. The directory is made.

        The system lets go of the lock when the process ends, however it does.
        """
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("ab")
        with file:
            lock_file(file, f"another process is training in {self.path}")
            yield

    def check(self, config: dict[str, Any], resume: bool) -> None:
        """Check that the run in the directory is this one, or that there is none."""
        if not self.config.exists():
            self._check_empty()
            return
        if not resume:
            raise FileExistsError(
                f"{self.path} holds a run already: resume it (resume=True, --resume) "
                "or choose another directory"
            )
        different = differences(self.read_config(), config)
        if different:
            raise ConfigMismatchError(
                f"{self.path} holds a run of another config, which cannot be resumed as this one:\n"
                + "\n".join(f"  {line}" for line in different)
            )

    def _check_empty(self) -> None:
        found = [name for name in LEFT_BY_RUNS if (self.path / name).exists()]
        if found:
            raise FileExistsError(
                f"{self.path} has {', '.join(found)} but no config.json, so it is not known of "
                "what run: put config.json back, or choose another directory"
            )

    def claim(self, config: dict[str, Any]) -> None:
        """Write the config of the run that is started, where there is none yet."""
        if not self.config.exists():
            write_atomically(self.config, to_json(config | {"versions": versions()}))

    def read_config(self) -> dict[str, Any]:
        """The config of the run in this directory."""
        if not self.config.exists():
            raise FileNotFoundError(f"{self.path} holds no run: it has no config.json")
        try:
            content = json.loads(self.config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.config} is not JSON: {error}") from error
        parts = content if isinstance(content, dict) else {}
        if not all(isinstance(parts.get(name), kind) for name, kind in PARTS.items()):
            raise ValueError(
                f"{self.config} is not the config of a run: expected {', '.join(PARTS)} in it"
            )
        return parts
