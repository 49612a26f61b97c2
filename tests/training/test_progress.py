"""What is shown."""

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
