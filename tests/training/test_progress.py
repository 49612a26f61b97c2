"""What is shown."""

import io
import sys

import pytest
import torch
from runs import Heard, run
from toy import Toy

from equipool.training import evaluate, track
from equipool.training import progress as progress_module
from equipool.training.progress import (
    LiveProgress,
    PlainProgress,
    Progress,
    progress_for_terminal,
    tracking,
)


def tell(progress):
    progress.begin("run", 10, 100)
    progress.advance("run", 20)
    progress.report("run", 50, 100, {"loss": 0.12345, "error": None})
    progress.message("[b]a message[/b]")
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


class Parts(Heard):
    """Keeps what is shown of evaluations."""

    def evaluate(self, run, done, total):
        self.texts.append(f"{run} {done}/{total}")

    def end_evaluation(self, run):
        self.texts.append(f"{run} ends")


def in_parts(self, network, device):
    parts = track(torch.linspace(-1, 1, 60, device=device).reshape(2, 10, 3, 1))
    return {"error": max((network(x) - x.mean((1, 2))).square().mean().item() for x in parts)}


def test_an_evaluation_shows_its_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(Toy, "evaluate", in_parts)
    shown = Parts()
    folder = run(tmp_path, progress=shown)
    each = ["run 0/2", "run 1/2", "run 2/2", "run ends"]
    assert [text for text in shown.texts if text.startswith("run ")] == 3 * each
    shown = Parts()
    metrics = evaluate(folder, "last", device="cpu", progress=shown)
    assert shown.texts == each
    assert evaluate(folder, "last", device="cpu") == metrics


def test_nothing_is_shown_outside_an_evaluation(capsys):
    assert list(track(iter("ab"))) == ["a", "b"]
    with tracking(Progress(), "run"):
        assert list(track("ab")) == ["a", "b"]
    assert capsys.readouterr().out == ""


def test_lines_about_a_long_evaluation(capsys, monkeypatch):
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    with tracking(PlainProgress(), "run"):
        for _ in track(range(5)):
            pass
        for _ in track(iter(range(2))):
            pass
    assert capsys.readouterr().out.splitlines() == [
        "run: evaluating, 3/5",
        "run: evaluating, 0 done",
    ]


@pytest.mark.parametrize("total", [None, 3])
def test_a_bar_of_an_evaluation_goes_when_it_ends(capsys, total):
    progress = LiveProgress()
    progress.begin("run", 0, 10)
    with tracking(progress, "run"):
        for _ in track(iter("abc"), total):
            assert len(progress._bars.tasks) == 2
    assert len(progress._bars.tasks) == 1
    progress.close()
