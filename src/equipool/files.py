"""Files that are the old or the new one at every moment, whenever the process is killed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors that making room ends


class StorageError(OSError):
    """A file could not be written. What was there before is untouched."""


class FileError(ValueError):
    """A file is damaged, or not of the expected kind."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a `StorageError` that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "; make room and try again" if error.errno in FULL else ""
        text = f"could not write {path.name}: {reason}. What was saved before is untouched{advice}"
        raise StorageError(error.errno, text, str(path)) from error


def write_bytes(path: str | Path, *contents: bytes | memoryview) -> None:
    """Write a file atomically, the contents one after another, and wait until it is on the disk."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with naming(path):
            with partial.open("wb") as file:
                file.writelines(contents)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _sync(folder: Path) -> None:
    """Wait until the folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically, a line per value; None for numbers that are not finite."""
    write_text(path, json.dumps(jsonable(content), indent=1, allow_nan=False) + "\n")


def jsonable(content: Any) -> Any:
    """The same content with None for numbers that are not finite, which JSON cannot hold."""
    if isinstance(content, dict):
        return {key: jsonable(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [jsonable(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], kind: str
) -> None:
    """Write tensors and metadata as one safetensors file, atomically.

    Args:
        path: the file. Its folder must exist.
        tensors: from any device; they may share memory.
        metadata: anything JSON can hold; numbers that are not finite are kept.
        kind: what the file is, with the version of its contents, such as `"equipool run 1"`.
    """
    from safetensors.torch import save

    # clones, because the format refuses tensors that share memory
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    data = memoryview(save(own))
    start = 8 + int.from_bytes(data[:8], "little")
    header, body = json.loads(bytes(data[8:start])), data[start:]
    header["__metadata__"] = {"kind": kind, "metadata": json.dumps(metadata)}
    header["__metadata__"]["sha256"] = _checksum(header, body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the tensors
    write_bytes(path, len(text).to_bytes(8, "little"), text, body)


def load_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the metadata that `save_tensors` wrote; nothing is unpickled.

    Raises a `FileError` if the file is of another kind, cut off, or differs in any bit.
    """
    from safetensors.torch import load

    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    body = memoryview(data)[start:]
    try:
        header = json.loads(data[8:start])
        about = header["__metadata__"]
        found, expected = about["kind"], about.pop("sha256")
        ends = [own["data_offsets"][1] for name, own in header.items() if name != "__metadata__"]
        size = max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        cut = data[8:9] == b"{" and len(data) < start
        problem = "is cut off" if cut else "is not a file that equipool wrote, or is damaged"
        raise FileError(f"{path} {problem}; expected: {kind}") from None
    if len(body) < size:
        raise FileError(f"{path} is cut off: it has {start + len(body)} of {start + size} bytes")
    if _checksum(header, body) != expected:
        raise FileError(f"{path} is damaged: its checksum does not match")
    if found != kind:
        raise FileError(f"{path} is of kind {found!r}, expected {kind!r}")
    return load(data), json.loads(about["metadata"])


def _checksum(header: dict[str, Any], body: memoryview) -> str:
    """The checksum of the format's header, without the checksum itself, and of its tensors."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(body)
    return digest.hexdigest()
