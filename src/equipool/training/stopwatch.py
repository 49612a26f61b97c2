"""Seconds of a run, over all its pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from equipool.training.counts import Counts


@dataclass
class EvaluationClock:
    """Seconds that the evaluations of all runs took that are trained together."""

    seconds: float = 0.0


class Stopwatch:
    """Keeps `counts.seconds` and `counts.evaluation_seconds`, from `start` on.

    While one of several runs is evaluated, none of them trains: its seconds are those of an
    evaluation to all of them.

    Args:
        counts: what is kept.
        device: is waited for before the time is taken.
        evaluations: shared by the runs that are trained together.
    """

    def __init__(self, counts: Counts, device: torch.device, evaluations: EvaluationClock) -> None:
        self.counts = counts
        self.device = device
        self.evaluations = evaluations
        self.start()

    def start(self) -> None:
        """What went by before now is no part of the run."""
        self._last = self._saved = time.perf_counter()
        self._evaluated = self.evaluations.seconds
        self._lap = (self.counts.step, self.training_seconds)

    @property
    def training_seconds(self) -> float:
        """Seconds without those of evaluations."""
        return self.counts.seconds - self.counts.evaluation_seconds

    def read(self) -> None:
        """Take the time, when the device has done what it was given."""
        self._take(self._now())

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return time.perf_counter()

    def _take(self, now: float) -> None:
        self.counts.seconds += now - self._last
        self.counts.evaluation_seconds += self.evaluations.seconds - self._evaluated
        self._last, self._evaluated = now, self.evaluations.seconds

    def lap(self) -> float:
        """Steps in a second of training since the last lap."""
        self.read()
        step, seconds = self._lap
        self._lap = (self.counts.step, self.training_seconds)
        return (self._lap[0] - step) / max(self._lap[1] - seconds, 1e-9)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The seconds inside the block are those of an evaluation."""
        self.read()
        yield
        now = self._now()
        self.evaluations.seconds += now - self._last
        self._take(now)

    def saved(self) -> None:
        """A checkpoint is written."""
        self._saved = time.perf_counter()

    def since_saved(self) -> float:
        return time.perf_counter() - self._saved
