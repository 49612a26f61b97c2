"""Calls of the command with settings that take a second."""

import pytest
from typer.testing import CliRunner

from equipool.cli import make_app
from equipool.training import Stop

TINY = {
    "--embedding": "4", "--batch-size": "4", "--set-size": "5", "--width": "4", "--head-width": "4",
    "--inner-steps": "2", "--evaluation-sets": "50", "--steps": "20", "--chunk": "10",
    "--log-every": "5", "--evaluate-every": "10", "--checkpoint-every": "5", "--device": "cpu",
}  # fmt: skip


@pytest.fixture
def equipool():
    """`equipool` with these arguments; a dictionary is flags and their values."""
    app = make_app()

    def call(*arguments):
        words = []
        for argument in arguments:
            pairs = argument.items() if isinstance(argument, dict) else ()
            words += [part for pair in pairs for part in pair] or [argument]
        return CliRunner().invoke(app, [str(word) for word in words])

    return call


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


@pytest.fixture
def refused():
    """That a command ended with an error of one line."""

    def check(done, *messages, status=(1, 2)):
        assert done.exit_code in status
        assert all(message in done.stderr for message in messages), done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.output

    return check
