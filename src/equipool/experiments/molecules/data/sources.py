"""Where molecules come from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from equipool.experiments.molecules.data.featurize import Chunk
from equipool.experiments.molecules.data.splits import GroupIndex, Parts


@dataclass(frozen=True)
class Contents:
    """What a source contains, known before its molecules are read."""

    num_rows: int
    label_names: tuple[str, ...]
    kind: str
    reason: str = ""  # why it is of this kind, if that was inferred


@dataclass(frozen=True)
class MoleculeSource(ABC):
    """Files of molecules in one format."""

    path: str | Path

    def inside(self, folder: Path) -> Self:
        """The same source with its path relative to a folder."""
        return replace(self, path=folder / self.path)

    @property
    def location(self) -> Path:
        """The file or folder."""
        return Path(self.path).expanduser()

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that are read."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """The settings that, with the files, determine the result; JSON-serialisable."""

    @abstractmethod
    def examine(self) -> Contents:
        """Check the files and read what is quick to read. Raise if they are broken."""

    @abstractmethod
    def chunks(self, contents: Contents) -> Iterator[Chunk]:
        """The molecules in the source's order, some at a time."""

    @abstractmethod
    def assign(self, groups: GroupIndex) -> Parts:
        """The split part of each molecule, once all have been read."""

    def missing(self) -> list[Path]:
        """The files that do not exist."""
        return [file for file in self.files if not file.is_file()]

    def fingerprint(self) -> dict[str, Any]:
        """The recipe, and the name, size and SHA-256 of each file.

        Runs record its hash and refuse to resume if it has changed, so its form must stay stable.
        """
        files = []
        for file in self.files:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            files.append({"name": file.name, "size": file.stat().st_size, "sha256": digest})
        return {"recipe": self.recipe(), "files": files}
