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

import torch
from torch import Tensor

NAME = "equipool"  # of what the package adds to the format's metadata
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


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically, and wait until it is on the disk."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with naming(path):
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # its entries
            finally:
                os.close(folder)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


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
    about = json.dumps({"kind": kind, "metadata": metadata})
    # one entry, because the format writes several in any order
    write_bytes(path, save(own, {NAME: json.dumps([about, _checksum(own, about)])}))


def load_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the metadata that `save_tensors` wrote; nothing is unpickled.

    Raises a `FileError` if the file is of another kind, cut off, or differs in any bit.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    data = Path(path).read_bytes()
    header = data[8 : 8 + int.from_bytes(data[:8], "little")]
    try:
        about, checksum = json.loads(json.loads(header)["__metadata__"][NAME])
        tensors = load(data)
    except (ValueError, LookupError, TypeError, SafetensorError) as error:
        problem = f"is not a file that equipool wrote, or is damaged; expected: {kind}"
        raise FileError(f"{path} {problem}") from error
    if _checksum(tensors, about) != checksum:
        raise FileError(f"{path} is damaged: its checksum does not match")
    content = json.loads(about)
    if content["kind"] != kind:
        raise FileError(f"{path} is of kind {content['kind']!r}, expected {kind!r}")
    return tensors, content["metadata"]


def _checksum(tensors: Mapping[str, Tensor], about: str) -> str:
    """The checksum of the names, types, shapes and values of tensors, and of what is beside."""
    digest = hashlib.sha256(about.encode())
    for name, value in sorted(tensors.items()):
        digest.update(repr((name, value.dtype, value.shape)).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
