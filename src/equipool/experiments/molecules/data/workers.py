"""Featurizing in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from equipool.experiments.molecules.data.featurize import (
    Chunk,
    SmilesRows,
    Unparsable,
    featurize,
)
from equipool.experiments.molecules.data.splits import Split

MIN_ROWS = 10_000  # fewer are done before further processes have started


def featurize_all(
    batches: Iterable[SmilesRows], num_rows: int, split: Split, unparsable: Unparsable
) -> Iterator[Chunk]:
    """Featurize the batches, in order, on all cores. Only a few batches are read ahead."""
    if num_rows <= MIN_ROWS:
        for batch in batches:
            yield featurize(batch, split, unparsable)
        return
    workers = num_cores()
    pending: deque[Future[Chunk]] = deque()
    try:
        with _isolated():  # it starts a process, too
            pool = ProcessPoolExecutor(workers, _Context(), _set_up_worker)
        with pool:
            try:
                for batch in batches:
                    pending.append(pool.submit(featurize, batch, split, unparsable))
                    if len(pending) == 2 * workers:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a featurizing process ended unexpectedly; the machine may be out of memory"
        ) from error


def num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker(SpawnProcess):
    """A spawned process that does not import the script that started it, so that scripts need no
    `if __name__ == "__main__"` guard."""

    def start(self) -> None:
        with _isolated():
            super().start()


class _Context(SpawnContext):
    Process = _Worker


@contextmanager
def _isolated() -> Iterator[None]:
    """Processes started in the block use one thread, and import neither the main script nor
    anything from the working directory."""
    with (
        _replaced(sys.modules, "__main__", ModuleType("__main__")),
        _replaced(os.environ, "PYTHONSAFEPATH", "1"),
        _replaced(os.environ, "OMP_NUM_THREADS", "1"),
    ):
        yield


@contextmanager
def _replaced(mapping: MutableMapping[str, Any], key: str, value: Any) -> Iterator[None]:
    before = mapping.get(key)
    mapping[key] = value
    try:
        yield
    finally:
        if before is None:
            del mapping[key]
        else:
            mapping[key] = before


def _set_up_worker() -> None:
    """Runs first in every worker, which ignores Ctrl-C but ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()  # so that Linux gives every worker its own share of a busy machine
    os.dup2(2, 1)  # standard output may be a table
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
