"""Molecules from SMILES, in several processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from equipool.experiments.molecules.data.making import Batch, make_piece
from equipool.experiments.molecules.data.pieces import Piece
from equipool.experiments.molecules.data.smiles import Unparsable
from equipool.experiments.molecules.data.splits import Split
from equipool.experiments.molecules.data.workers import Job, Workers

FEW = 10_000  # molecules that are done before further processes have started


def featurised(
    batches: Iterable[Batch], num_rows: int, split: Split, unparsable: Unparsable
) -> Iterator[Piece]:
    """The batches' molecules, in order. Batches are read as they are needed, a few ahead."""
    if num_rows <= FEW:
        for batch in batches:
            yield make_piece(batch, split, unparsable)
        return
    yield from _by_workers((Job(batch, split, unparsable) for batch in batches), num_cores())


def _by_workers(jobs: Iterable[Job], number: int) -> Iterator[Piece]:
    """The jobs' pieces in order; of what is asked for, at most two for each worker wait."""
    asked: deque[Future[Piece]] = deque()
    with Workers(number) as workers:
        for job in jobs:
            asked.append(workers.ask(job))
            if len(asked) == 2 * number:
                yield asked.popleft().result()
        while asked:
            yield asked.popleft().result()


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
