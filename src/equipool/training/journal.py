"""Everything that a run says: to its log, to TensorBoard, and to whoever is looking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from equipool.training.folder import RunFolder
from equipool.training.log import Entry, Log
from equipool.training.progress import Progress
from equipool.training.tensorboard import TensorBoard


class Journal(ABC):
    """What one run says."""

    @abstractmethod
    def open(self, step: int) -> None:
        """The run starts, or goes on, at this step. Before, only `say` may be called."""

    @abstractmethod
    def say(self, text: str) -> None:
        """A message to whoever is looking."""

    @abstractmethod
    def reached(self, step: int) -> None:
        """The run has come to this step. Called often."""

    @abstractmethod
    def event(self, event: str, step: int, content: Entry) -> None:
        """Something happened."""

    @abstractmethod
    def point(self, entry: Entry) -> None:
        """The numbers of training since the last point."""

    @abstractmethod
    def evaluation(self, entry: Entry, best: bool) -> None:
        """The numbers of an evaluation."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until the disk has the log."""

    @abstractmethod
    def close(self) -> None:
        """The run says nothing more."""


class SilentJournal(Journal):
    """Of the processes that do not lead."""

    def open(self, step: int) -> None: ...

    def say(self, text: str) -> None: ...

    def reached(self, step: int) -> None: ...

    def event(self, event: str, step: int, content: Entry) -> None: ...

    def point(self, entry: Entry) -> None: ...

    def evaluation(self, entry: Entry, best: bool) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class FullJournal(Journal):
    """Of the process that leads.

    Args:
        folder: the run's directory.
        steps: steps of the run.
        monitor: the metric that is shown of an evaluation.
        progress: shows it.
    """

    def __init__(self, folder: RunFolder, steps: int, monitor: str, progress: Progress) -> None:
        self.folder, self.steps, self.progress = folder, steps, progress
        self.monitor = monitor
        self.name = folder.path.name
        self._log: Log | None = None
        self._tensorboard: TensorBoard | None = None

    def open(self, step: int) -> None:
        self._log = Log(self.folder.log, step)
        self._tensorboard = TensorBoard(self.folder.tensorboard, step, self.say)
        self.progress.begin(self.name, step, self.steps)

    def say(self, text: str) -> None:
        self.progress.say(f"{self.name}: {text}")

    def reached(self, step: int) -> None:
        self.progress.advance(self.name, step)

    def event(self, event: str, step: int, content: Entry) -> None:
        if self._log is not None:
            self._log.write({"event": event, "step": step} | content)

    def point(self, entry: Entry) -> None:
        if self._log is not None:
            self._log.write(entry)
        numbers = {"loss": entry["loss"], **entry["metrics"], "steps/s": entry["steps_per_second"]}
        self._show("train", entry, numbers)

    def evaluation(self, entry: Entry, best: bool) -> None:
        self.event("evaluation", entry["step"], entry | {"best": best})
        numbers = {f"evaluated {self.monitor}": entry["metrics"][self.monitor]}
        self._show("evaluation", entry, numbers)

    def _show(self, prefix: str, entry: Entry, numbers: Mapping[str, float | None]) -> None:
        if self._tensorboard is not None:
            self._tensorboard.write(entry, prefix)
        self.progress.report(self.name, entry["step"], self.steps, numbers)

    def sync(self) -> None:
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        for part in (self._log, self._tensorboard):
            if part is not None:
                part.close()
