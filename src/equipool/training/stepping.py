"""How steps are run: one operation after the other, or as one CUDA graph."""

from __future__ import annotations

from abc import ABC, abstractmethod

from equipool import CapturedStep, capture_step
from equipool.capture import own_workspaces
from equipool.training.devices import Place
from equipool.training.journal import Journal
from equipool.training.step import Step
from equipool.training.task import Batch


class Stepping(ABC):
    """Runs the steps of a chunk of batches, whose tensors have the steps as first dimension."""

    chunk: Batch

    @abstractmethod
    def load(self, chunk: Batch) -> None:
        """Take a chunk; the steps that follow are its."""

    @abstractmethod
    def take(self, position: int) -> None:
        """Take the step of the batch at this position of the chunk."""

    def batch(self, position: int) -> Batch:
        """The batch at this position."""
        return {name: values[position] for name, values in self.chunk.items()}


class Eager(Stepping):
    """One operation after the other."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def load(self, chunk: Batch) -> None:
        self.chunk = chunk

    def take(self, position: int) -> None:
        self.step(self.batch(position))


class Captured(Stepping):
    """The whole step as one CUDA graph, which finds its batch itself.

    The chunk lies in memory that stays where it is. The graph reads the batch at
    `step % chunk length`, by the count of steps that it keeps on the device: a step is one launch
    and nothing is copied by the host.
    """

    def __init__(self, step: Step, chunk: Batch, num_steps: int) -> None:
        self.step = step
        self.chunk = {name: values.clone() for name, values in chunk.items()}
        self.num_batches = len(next(iter(chunk.values())))
        kept = {
            file: {name: value.clone() for name, value in tensors.items()}
            for file, tensors in step.tensors().items()
        }
        try:
            with own_workspaces():
                self._replay: CapturedStep = capture_step(self._step)
        finally:
            step.fill(kept, num_steps)  # the runs before the recording have trained

    def _step(self) -> None:
        position = self.step.counter % self.num_batches
        self.step({name: v.index_select(0, position).squeeze(0) for name, v in self.chunk.items()})

    def load(self, chunk: Batch) -> None:
        for name, values in self.chunk.items():
            values.copy_(chunk[name])

    def take(self, position: int) -> None:
        self._replay()


def make_stepping(
    step: Step, chunk: Batch, capture: bool | None, place: Place, num_steps: int, journal: Journal
) -> Stepping:
    """Captured where that is wanted, or possible and not unwanted.

    Args:
        step: what is run.
        chunk: a chunk of batches.
        capture: True, False, or None for where it is possible.
        place: where it is run.
        num_steps: steps taken before.
        journal: is told where a step cannot be captured after all.
    """
    possible = place.device.type == "cuda" and place.alone
    if capture and not possible:
        raise ValueError(
            "capture is True, expected None or False: a step is captured on one CUDA device only"
        )
    if capture is False or not possible:
        return Eager(step)
    try:
        return Captured(step, chunk, num_steps)
    except RuntimeError as error:
        if capture:
            raise
        journal.event("not captured", num_steps, {"reason": str(error)})
        journal.say(f"the step cannot be captured and runs as it is: {error}")
        return Eager(step)
