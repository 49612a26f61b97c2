"""One process at a time."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from equipool.experiments.molecules.data.progress import say


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other process is inside such a block of the same file; where one is, wait for it. The
    system lets go of the lock when a process ends, however it does."""
    with path.open("ab") as file:
        if find_spec("fcntl") is not None:  # on this system
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another process that prepares {path.stem}")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
                    raise
        yield
