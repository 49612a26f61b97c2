"""What molecules are prepared from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipool.experiments.molecules.data.groups import Groups
from equipool.experiments.molecules.data.pieces import Piece
from equipool.experiments.molecules.data.splits import Parts


@dataclass(frozen=True)
class Contents:
    """What is in a source, known before its molecules are read."""

    num_rows: int
    label_names: tuple[str, ...]
    kind: str
    why: str = ""  # it is of this kind, where nobody has said so


class MoleculeSource(ABC):
    """Files with molecules."""

    @abstractmethod
    def inside(self, folder: Path) -> MoleculeSource:
        """The same with its path counted from a folder."""

    @property
    @abstractmethod
    def location(self) -> Path:
        """The file or folder that it is."""

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that are read."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """What beside the files' content decides what comes out, for JSON."""

    @abstractmethod
    def examine(self) -> Contents:
        """Read what is quick to read, and raise where the files are broken."""

    @abstractmethod
    def pieces(self, contents: Contents) -> Iterator[Piece]:
        """The molecules, some at a time, in the source's order."""

    @abstractmethod
    def divide(self, groups: Groups) -> Parts:
        """The part of each molecule, when all have been read."""

    def missing(self) -> list[Path]:
        """Files that are not there."""
        return [file for file in self.files if not file.is_file()]

    def fingerprint(self) -> dict[str, Any]:
        """The recipe, and each file's name, size and SHA-256."""
        return {
            "recipe": self.recipe(),
            "files": [
                {"name": file.name, "size": file.stat().st_size, "sha256": sha256_of(file)}
                for file in self.files
            ],
        }


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's content."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
