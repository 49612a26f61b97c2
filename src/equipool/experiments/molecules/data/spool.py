"""Arrays that grow on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

BLOCK = 2**22  # bytes that are copied at a time


class Spool:
    """Files of one array each, to which rows are added; all are closed at the end of the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, name: str, rows: npt.NDArray[Any]) -> None:
        """Put rows behind those that the array has."""
        if name not in self._files:
            file = (self._folder / name).open("w+b")
            self._files[name] = self._stack.enter_context(file)
        self._files[name].write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")

    def blocks(self, name: str) -> Iterator[bytes]:
        """The array's bytes."""
        file = self._files[name]
        file.seek(0)
        while block := file.read(BLOCK):
            yield block

    def size(self, name: str) -> int:
        """Bytes of the array."""
        file = self._files[name]
        file.seek(0, 2)
        return file.tell()
