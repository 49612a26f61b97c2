"""The numbers of the log in TensorBoard, where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def flat(entry: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of an entry, with the names of the parts they are in.

    Example:
        >>> flat({"loss": 0.5, "metrics": {"error": 1.0}, "event": "evaluation"})
        {'loss': 0.5, 'metrics/error': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = value
    return found


class TensorBoard:
    """Writes to `folder`; what was written of steps after `step` is hidden.

    Without the package it writes nothing, and says so once. Nor does it go on where the disk is
    full: the log is what counts.
    """

    def __init__(self, folder: Path, step: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._writer: Any = None
        if find_spec("tensorboard") is None:
            say("TensorBoard is not installed: the log is in log.jsonl alone")
            return
        from torch.utils.tensorboard import SummaryWriter

        with self._giving_up():
            self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def write(self, entry: Mapping[str, Any], prefix: str) -> None:
        """The numbers of an entry at its step."""
        with self._giving_up():
            for name, value in flat(entry).items():
                if self._writer is not None and name != "step":
                    self._writer.add_scalar(f"{prefix}/{name}", value, entry["step"])

    def close(self) -> None:
        with self._giving_up():
            if self._writer is not None:
                self._writer.close()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            self._say(f"TensorBoard cannot be written any more: {error}")
