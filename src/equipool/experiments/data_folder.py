"""The data directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

VARIABLE = "EQUIPOOL_DATA"

_chosen: ContextVar[Path | None] = ContextVar("the data folder", default=None)


def data_folder(given: str | Path | None = None) -> Path:
    """The directory that data is read from and downloaded to: `given`, else that of
    `using_data_folder`, else the environment variable EQUIPOOL_DATA, else `equipool` in the user's
    cache directory (XDG_CACHE_HOME, or `~/.cache`). It need not exist.

    The location of the data does not identify a run, so it is not a field of a task: a task calls
    this without an argument.

    Example:
        >>> data_folder("my data").name
        'my data'
    """
    if given is not None:
        return Path(given).expanduser()
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    return cache_folder()


def is_chosen(given: str | Path | None = None) -> bool:
    """Whether the caller chose the folder, by `given` or `using_data_folder`, and not the
    environment."""
    return given is not None or _chosen.get() is not None


def cache_folder() -> Path:
    """`equipool` in the user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # the XDG standard requires that a relative path be ignored
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "equipool"


@contextmanager
def using_data_folder(given: str | Path | None) -> Iterator[None]:
    """Inside the block `data_folder()` returns `given`; None changes nothing.

    Example:
        >>> with using_data_folder("my data"):
        ...     data_folder().name
        'my data'
    """
    token = _chosen.set(_chosen.get() if given is None else data_folder(given))
    try:
        yield
    finally:
        _chosen.reset(token)
