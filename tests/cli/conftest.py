"""Calls of the command with settings that take a second."""

import pytest

import commands
from equipool.training import Stop

TINY = {
    "--embedding": "4", "--batch-size": "4", "--set-size": "5", "--width": "4", "--head-width": "4",
    "--inner-steps": "2", "--evaluation-sets": "50", "--steps": "20", "--chunk": "10",
    "--log-every": "5", "--evaluate-every": "10", "--checkpoint-every": "5", "--device": "cpu",
}  # fmt: skip


@pytest.fixture
def equipool():
    return commands.call


@pytest.fixture
def tiny():
    """Flags of a run that takes a second."""
    return dict(TINY)


@pytest.fixture
def stop_at(monkeypatch):
    """Stops training after so many steps from now, as Ctrl-C would."""

    def arrange(step):
        asked = 0

        def due(self):
            nonlocal asked
            asked += 1
            if asked == step:
                self.request("interrupted")
            return asked == step

        monkeypatch.setattr(Stop, "due", due)

    return arrange
