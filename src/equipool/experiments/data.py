"""Where data is, and how it is downloaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "EQUIPOOL_DATA"

_chosen: ContextVar[Path | None] = ContextVar("the data folder", default=None)


def data_folder(given: str | Path | None = None) -> Path:
    """The directory that data is read from and downloaded to: `given`, else that of
    `using_data_folder`, else the environment variable EQUIPOOL_DATA, else `cache_folder()`. It need
    not exist.

    The location of the data does not identify a run, so it is not a field of a task: a task calls
    this without an argument.

    Example:
        >>> with using_data_folder("my data"):
        ...     data_folder().name
        'my data'
    """
    found = given or _chosen.get() or os.environ.get(VARIABLE)
    return Path(found).expanduser() if found else cache_folder()


def is_chosen(given: str | Path | None = None) -> bool:
    """Whether the caller chose the folder, by `given` or `using_data_folder`, and not the
    environment."""
    return given is not None or _chosen.get() is not None


def cache_folder() -> Path:
    """`equipool` in the user's cache directory (XDG_CACHE_HOME, or `~/.cache`)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # the XDG standard requires that a relative path be ignored
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "equipool"


@contextmanager
def using_data_folder(given: str | Path | None) -> Iterator[None]:
    """Inside the block `data_folder()` returns `given`; None changes nothing."""
    token = _chosen.set(_chosen.get() if given is None else data_folder(given))
    try:
        yield
    finally:
        _chosen.reset(token)


def print_status(text: str) -> None:
    """Print to standard error: standard output may be a table."""
    print(text, file=sys.stderr, flush=True)


class MissingDataError(FileNotFoundError):
    """Data is missing and could not be downloaded; the message explains how to get it."""


@dataclass(frozen=True)
class Source:
    """A published file."""

    name: str  # in the data directory
    url: str
    checksum: str  # of its content, as `md5:...` or `sha256:...`
    about: str  # what to call it in messages


def fetch(source: Source, folder: Path) -> Path:
    """The file in the folder, downloaded if it is missing.

    A download with another checksum is refused and deleted; a file that exists is not checked.
    Without a network or without pooch this raises `MissingDataError`, which names the address and
    where to put the file.
    """
    file = folder / source.name
    if file.exists():
        return file
    advice = (
        f"{source.about} is missing: get {source.url} and put it at {file}, or give its directory "
        "with --data-dir or EQUIPOOL_DATA."
    )
    if find_spec("pooch") is None:
        raise MissingDataError(f"{advice} Or: pip install 'equipool[data]'")
    import pooch

    try:
        return Path(pooch.retrieve(source.url, source.checksum, source.name, folder))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise MissingDataError(f"{advice} The download failed: {reason}") from error
