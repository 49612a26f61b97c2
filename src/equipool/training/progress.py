"""What is shown while it trains."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from equipool.bars import columns


class Progress(ABC):
    """Shows how far runs are. Runs are told apart by their names."""

    @abstractmethod
    def begin(self, run: str, step: int, steps: int) -> None:
        """A run starts, or goes on, at `step` of `steps`."""

    @abstractmethod
    def advance(self, run: str, step: int) -> None:
        """A run has come to `step`. Called often."""

    @abstractmethod
    def report(self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]) -> None:
        """The latest numbers of a run."""

    @abstractmethod
    def say(self, text: str) -> None:
        """A message."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more is to be shown."""


def shown(numbers: Mapping[str, float | None]) -> str:
    """Numbers on a line.

    Example:
        >>> shown({"loss": 0.00012345, "steps/s": 412.3})
        'loss 0.0001234  steps/s 412.3'
    """
    return "  ".join(
        f"{name} {'-' if value is None else format(value, '.4g')}"
        for name, value in numbers.items()
    )


class SilentProgress(Progress):
    """Shows nothing."""

    def begin(self, run: str, step: int, steps: int) -> None: ...

    def advance(self, run: str, step: int) -> None: ...

    def report(
        self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]
    ) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class PlainProgress(Progress):
    """A line for every point of the log."""

    def begin(self, run: str, step: int, steps: int) -> None:
        self.say(f"{run}: from step {step} to {steps}")

    def advance(self, run: str, step: int) -> None: ...

    def report(self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]) -> None:
        self.say(f"{run}: {step}/{steps}  {shown(numbers)}")

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None: ...


class LiveProgress(Progress):
    """A bar for every run, with its speed, the time that is left and the latest numbers."""

    def __init__(self) -> None:
        from rich import progress

        self._bars: Any = progress.Progress(
            *columns(),
            progress.TextColumn("{task.fields[numbers]}"),
            refresh_per_second=4,
        )
        self._bars.start()
        self._ids: dict[str, Any] = {}

    def begin(self, run: str, step: int, steps: int) -> None:
        self._ids[run] = self._bars.add_task(run, total=steps, completed=step, numbers="")

    def advance(self, run: str, step: int) -> None:
        self._bars.update(self._ids[run], completed=step)

    def report(self, run: str, step: int, steps: int, numbers: Mapping[str, float | None]) -> None:
        self._bars.update(self._ids[run], completed=step, numbers=shown(numbers))

    def say(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._bars.stop()


def progress_for_terminal() -> Progress:
    """Bars in a terminal, lines elsewhere or where rich is not installed."""
    if sys.stdout.isatty() and find_spec("rich") is not None:
        return LiveProgress()
    return PlainProgress()
