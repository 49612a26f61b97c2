"""Downloads of published files."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


class MissingDataError(FileNotFoundError):
    """Data is missing and could not be downloaded; the message explains how to get it."""


@dataclass(frozen=True)
class Source:
    """A published file.

    Args:
        name: its name in the data directory.
        url: its address.
        checksum: of its content, as `md5:...` or `sha256:...`.
        about: what to call it in messages.
    """

    name: str
    url: str
    checksum: str
    about: str


def fetch(source: Source, folder: Path) -> Path:
    """The file in the folder, downloaded if it is missing.

    A download with another checksum is refused and deleted; a file that exists is not checked.
    Without a network or without pooch this raises `MissingDataError`, which names the address and
    where to put the file.
    """
    file = folder / source.name
    if file.exists():
        return file
    if find_spec("pooch") is None:
        raise MissingDataError(f"{_advice(source, file)} Or: pip install 'equipool[data]'")
    import pooch

    try:
        return Path(pooch.retrieve(source.url, source.checksum, source.name, folder))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise MissingDataError(f"{_advice(source, file)} The download failed: {reason}") from error


def _advice(source: Source, file: Path) -> str:
    return (
        f"{source.about} is not there: get {source.url} and put it at {file}, "
        "or say where it is with --data-dir or EQUIPOOL_DATA."
    )
