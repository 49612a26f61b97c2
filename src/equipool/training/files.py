"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

# errors that are over when there is room
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StorageError(OSError):
    """A file could not be written. What was there before is untouched."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the disk inside the block becomes one that names the file."""
    try:
        yield
    except OSError as error:
        advice = "; make room and resume" if error.errno in FULL else ""
        raise StorageError(
            error.errno,
            f"could not write {path.name}: {error.strerror or error}. "
            f"What was saved before is untouched{advice}",
            str(path),
        ) from error


def lock_file(file: IO[bytes], refused: str) -> None:
    """Lock an open file until it is closed; `BlockingIOError` with this message where another
    process has."""
    if find_spec("fcntl") is None:
        return  # not on this system
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(refused) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
            raise


def write_durably(path: Path, content: bytes) -> None:
    """Write and wait until the disk has it."""
    with naming(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the disk has the directory's entries."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_durably(source: Path, target: Path) -> None:
    """Give a file or directory its name, in one instant."""
    with naming(target):
        os.replace(source, target)
    sync_directory(target.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """The file at `path` is the old one or the new one, at every moment."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write_durably(partial, content)
        replace_durably(partial, path)
    except StorageError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def jsonable(content: Any) -> Any:
    """The same with None for numbers that are not finite: JSON has no word for them."""
    if isinstance(content, dict):
        return {key: jsonable(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [jsonable(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def to_json(content: Any) -> bytes:
    """JSON that is pleasant to compare line by line."""
    return (json.dumps(jsonable(content), indent=1, allow_nan=False) + "\n").encode()
