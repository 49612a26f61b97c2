"""The directory of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from equipool.training.config import differences
from equipool.training.environment import versions
from equipool.training.files import naming, to_json, write_atomically


class ConfigMismatchError(ValueError):
    """The directory holds a run of another config."""


class RunFolder:
    """`config.json`, `log.jsonl`, `checkpoints/`, `last.json`, `best.json`, `record.json`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.log = self.path / "log.jsonl"
        self.record = self.path / "record.json"
        self.tensorboard = self.path / "tensorboard"

    def prepare(self, config: dict[str, Any], resume: bool) -> None:
        """Make the directory, or check that the run in it is this one."""
        if not self.config.exists():
            with naming(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config, to_json(config | {"versions": versions()}))
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

    def read_config(self) -> dict[str, Any]:
        """The config of the run in this directory."""
        if not self.config.exists():
            raise FileNotFoundError(f"{self.path} holds no run: it has no config.json")
        try:
            return json.loads(self.config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.config} is not JSON: {error}") from error
