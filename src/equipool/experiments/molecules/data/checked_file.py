"""Tensors in one file of the safetensors format, with a checksum over all of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

ITEM_SIZE = {"I64": 8, "F32": 4, "I32": 4, "I16": 2, "U8": 1}
BLOCK = 2**22
NO_CHECKSUM = "0" * 64


class UnusableFileError(ValueError):
    """A file is not what was written, or was written by another version."""


@dataclass(frozen=True, eq=False)
class Stream:
    """A tensor whose bytes come in blocks."""

    dtype: str  # in the words of safetensors
    shape: tuple[int, ...]
    blocks: Iterable[bytes]

    @property
    def size(self) -> int:
        return ITEM_SIZE[self.dtype] * prod(self.shape)


def write_checked(path: Path, about: dict[str, Any], tensors: dict[str, Stream]) -> None:
    """Write the file and wait until the disk has it. The tensors are never in memory as a whole.

    Args:
        about: anything that JSON can say.
        tensors: by name. Those of large items are put first, so that all are aligned.
    """
    ordered = sorted(tensors.items(), key=lambda item: -ITEM_SIZE[item[1].dtype])
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(about), "sha256": NO_CHECKSUM}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.size
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    with path.open("wb") as file:
        file.write(_encoded(header))
        checksum = hashlib.sha256(_encoded(header))
        for block in (block for _, tensor in ordered for block in tensor.blocks):
            file.write(block)
            checksum.update(block)
        written = file.tell() - len(_encoded(header))
        if written != end:
            raise ValueError(f"tensors: expected {end} bytes by their shapes, found {written}")
        header["__metadata__"]["sha256"] = checksum.hexdigest()  # as long as what is there
        file.seek(0)
        file.write(_encoded(header))
        file.flush()
        os.fsync(file.fileno())


def read_about(path: Path) -> dict[str, Any]:
    """What was said about the tensors."""
    return json.loads(_read_header(path)[0]["__metadata__"]["about"])


def check(path: Path) -> None:
    """Raise `UnusableFileError` where the file is not what was written."""
    header, begin = _read_header(path)
    expected = header["__metadata__"]["sha256"]
    header["__metadata__"]["sha256"] = NO_CHECKSUM
    checksum = hashlib.sha256(_encoded(header))
    for block in _blocks(path, begin):
        checksum.update(block)
    if checksum.hexdigest() != expected:
        raise UnusableFileError(f"{path} is damaged: its content does not have its checksum")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors, whose memory is the file's: what is not looked at is not read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise UnusableFileError(f"{path} is damaged: {error}") from error


def _blocks(path: Path, begin: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(begin)
        while block := file.read(BLOCK):
            yield block


def _encoded(header: dict[str, Any]) -> bytes:
    """The header's length in 8 bytes, and the header, padded so that the tensors are aligned."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
            about, checksum = (header["__metadata__"][key] for key in ("about", "sha256"))
            if not isinstance(json.loads(about), dict) or not isinstance(checksum, str):
                raise ValueError("its header is of another kind")
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableFileError(f"{path} is damaged: {error}") from error
    return header, 8 + length
