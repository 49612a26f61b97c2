"""Further processes that make pieces.

They are plain subprocesses that read jobs from a pipe. So a script needs no guard against being
imported by them, and they end when the pipe does, also where this process is killed: workers of
`multiprocessing` would wait for ever.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any

from equipool.experiments.molecules.data.making import Batch, make_piece
from equipool.experiments.molecules.data.pieces import Piece
from equipool.experiments.molecules.data.smiles import Unparsable
from equipool.experiments.molecules.data.splits import Split

COMMAND = "from equipool.experiments.molecules.data.workers import work; work()"


@dataclass(frozen=True)
class Job:
    """The arguments of `make_piece`."""

    batch: Batch
    split: Split
    unparsable: Unparsable


@dataclass(frozen=True)
class Failure:
    """An answer: the error in words, and where it came from."""

    reason: str
    trace: str


class WorkerError(ChildProcessError):
    """A worker failed or ended."""


class Workers:
    """Some processes, which end with the block."""

    def __init__(self, number: int) -> None:
        self._processes = [_start() for _ in range(number)]
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(number)  # one waits for each process

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:  # nobody waits for what is being done
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with suppress(BrokenPipeError):
                process.communicate()  # there are no more jobs

    def ask(self, job: Job) -> Future[Piece]:
        """Have a job done by the next process that is free."""
        return self._threads.submit(self._do, job)

    def _do(self, job: Job) -> Piece:
        process = self._idle.get()
        try:
            answer = _exchange(process, job)
        finally:
            self._idle.put(process)
        if isinstance(answer, Failure):
            error = WorkerError(f"a process that makes molecules failed: {answer.reason}")
            error.add_note(answer.trace)
            raise error
        return answer


def work() -> None:
    """What a worker does: answer jobs until there are no more."""
    with (
        suppress(BrokenPipeError),  # nobody is there to be answered
        os.fdopen(os.dup(0), "rb") as jobs,
        os.fdopen(os.dup(1), "wb") as answers,
    ):
        os.dup2(2, 1)  # what else is printed must not come between the answers
        while message := _receive(jobs):
            _send(answers, pickle.dumps(_answer(message)))


def _answer(message: bytes) -> Piece | Failure:
    try:
        job: Job = pickle.loads(message)
        return make_piece(job.batch, job.split, job.unparsable)
    except Exception as error:  # whatever it is, who asked is told
        reason = "".join(traceback.format_exception_only(error)).strip()
        return Failure(reason, traceback.format_exc())


def _start() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND],  # no module is taken from the working folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # an interruption from the keyboard is for this process alone
    )


def _exchange(process: subprocess.Popen[bytes], job: Job) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    message = pickle.dumps(job)
    try:
        _send(process.stdin, message)
        answer = _receive(process.stdout)
    except OSError:
        answer = b""
    if not answer:
        raise WorkerError(f"a process that makes molecules ended with code {process.wait()}")
    return pickle.loads(answer)


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(8, "little"))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    """The next message; nothing where there is none."""
    return pipe.read(int.from_bytes(pipe.read(8), "little"))
