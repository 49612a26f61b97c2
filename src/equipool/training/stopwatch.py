"""Seconds of a run, over all its pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equipool.training.counts import Counts


class Stopwatch:
    """Keeps `counts.seconds` and `counts.evaluation_seconds`."""

    def __init__(self, counts: Counts, device: torch.device) -> None:
        self.counts = counts
        self.device = device
        self._last = self._saved = time.perf_counter()
        self._lap = (counts.step, self.training_seconds)

    @property
    def training_seconds(self) -> float:
        """Seconds without those of evaluations."""
        return self.counts.seconds - self.counts.evaluation_seconds

    def read(self) -> None:
        """Take the time, when the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        now = time.perf_counter()
        self.counts.seconds += now - self._last
        self._last = now

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
        before = self.counts.seconds
        yield
        self.read()
        self.counts.evaluation_seconds += self.counts.seconds - before

    def saved(self) -> None:
        """A checkpoint is written."""
        self._saved = time.perf_counter()

    def since_saved(self) -> float:
        return time.perf_counter() - self._saved
