"""Files that are complete or absent, whenever the process is killed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors that making room ends


class StorageError(OSError):
    """A file could not be written. What was there before is untouched."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a `StorageError` that names the file."""
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


def check_writable(file: str | Path) -> None:
    """Raise a `StorageError` if a file cannot be written here. Leaves nothing behind."""
    file = Path(file)
    if file.is_dir():
        raise StorageError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    folder = file.absolute().parent
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
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


def json_checksum(content: dict[str, Any]) -> str:
    """Of an object as JSON holds it, whatever its layout."""
    return checksum(json.dumps(content, sort_keys=True).encode())
