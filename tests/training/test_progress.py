"""What is shown."""

import io
import sys

from equipool.training.progress import LiveProgress, PlainProgress, progress_for_terminal


def tell(progress):
    progress.begin("run", 10, 100)
    progress.advance("run", 20)
    progress.report("run", 50, 100, {"loss": 0.12345, "error": None})
    progress.say("[b]a message[/b]")
    progress.close()


def test_lines(capsys):
    tell(PlainProgress())
    assert capsys.readouterr().out.splitlines() == [
        "run: from step 10 to 100",
        "run: 50/100  loss 0.1235  error -",
        "[b]a message[/b]",
    ]


def test_a_bar(capsys):
    tell(LiveProgress())
    shown = capsys.readouterr().out
    assert "50/100" in shown
    assert "[b]a message[/b]" in shown


def test_bars_are_for_terminals(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert isinstance(progress_for_terminal(), PlainProgress)
    monkeypatch.setattr(sys, "stdout", Terminal())
    progress = progress_for_terminal()
    assert isinstance(progress, LiveProgress)
    progress.close()
