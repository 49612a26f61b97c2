"""What is shown."""

import sys

from equipool.training import Progress


def test_numbers_and_messages_are_shown_unless_quiet(capsys):
    for quiet in (False, True):
        progress = Progress(quiet)
        progress.begin("run", 10, 100)
        progress.report(50, {"loss": 0.12345, "error": None})
        progress.message("a message")
        shown = capsys.readouterr().out
        for part in ("run", "50/100", "loss 0.1235  error -", "a message"):
            assert (part in shown) != quiet


def test_a_terminal_shows_one_bar_that_moves(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    progress = Progress()
    progress.begin("run", 0, 4)
    progress.report(1, {"loss": 0.5})
    progress.report(2, {"loss": 0.25})
    progress.message("saved")
    begun, *bars = capsys.readouterr().out.split("\r\033[K")
    assert begun == "run: from step 0 to 4\n"
    assert [bar.count("#") for bar in bars] == [5, 10]
    assert bars[-1].endswith("\nsaved\n")
