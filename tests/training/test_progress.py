"""What is shown."""

import pytest

from equipool.training.progress import LiveProgress, PlainProgress


@pytest.mark.parametrize("kind", [PlainProgress, LiveProgress])
def test_numbers_and_messages_are_shown(capsys, kind):
    progress = kind()
    progress.begin("run", 10, 100)
    progress.advance(50)
    progress.report({"loss": 0.12345, "error": None})
    progress.message("[b]a message[/b]")
    progress.close()
    shown = capsys.readouterr().out
    for part in ("run", "50/100", "loss 0.1235  error -", "[b]a message[/b]"):
        assert part in shown
