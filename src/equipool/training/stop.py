"""When to stop before the end: Ctrl-C, a signal to end, a limit of time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether to stop, and why.

    Args:
        after: seconds from now; None for no limit.
        say: hears of a signal at once, as it may take a while until it is followed.
    """

    def __init__(self, after: float | None, say: Callable[[str], None]) -> None:
        self._say = say
        self.reason: str | None = None
        self._listening = False
        self._deadline = None if after is None else time.monotonic() + after

    def request(self, reason: str) -> None:
        self.reason = reason

    def due(self) -> bool:
        """Whether it is time to stop."""
        if self.reason is None and self._deadline is not None:
            self.reason = "time is up" if time.monotonic() >= self._deadline else None
        return self.reason is not None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask to stop inside the block; a second one interrupts at once.

        Inside a block of the same object it changes nothing.
        """
        if self._listening or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def handle(number: int, frame: object) -> None:
            self.request("interrupted" if number == signal.SIGINT else "asked to end")
            for number, handler in before.items():
                signal.signal(number, handler)
            self._say("Stopping after this step. Once more to stop at once, without saving.")

        for number in SIGNALS:
            signal.signal(number, handle)
        self._listening = True
        try:
            yield
        finally:
            self._listening = False
            for number, handler in before.items():
                signal.signal(number, handler)
