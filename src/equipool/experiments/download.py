"""Files from where their makers publish them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


class MissingDataError(FileNotFoundError):
    """Data is not there and could not be fetched; the message says how to get it."""


@dataclass(frozen=True)
class Source:
    """A file that is published.

    Args:
        name: what it is called in the data folder.
        url: where it is.
        checksum: of its content, as `md5:...` or `sha256:...`.
        about: what it is, for people.
    """

    name: str
    url: str
    checksum: str
    about: str


def fetch(source: Source, folder: Path) -> Path:
    """The file in the folder, downloaded first where it is not there.

    A download whose checksum is not the source's is refused and not kept. A file that is there
    already is taken as it is. Where there is no network, or pooch is not installed,
    `MissingDataError` says what to get from where, and where to put it.
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
