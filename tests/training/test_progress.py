"""What is shown."""

import pytest
import torch
from runs import Heard, run
from toy import Toy

from equipool.training import evaluate, track
from equipool.training import progress as progress_module
from equipool.training.progress import LiveProgress, PlainProgress, Progress, tracking


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


def in_parts(self, network, device):
    parts = track(torch.linspace(-1, 1, 60, device=device).reshape(2, 10, 3, 1))
    return {"error": max((network(x) - x.mean((1, 2))).square().mean().item() for x in parts)}


def test_an_evaluation_shows_its_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(Toy, "evaluate", in_parts)
    shown = Heard()
    folder = run(tmp_path, progress=shown)
    each = ["evaluated 0/2", "evaluated 1/2", "evaluated 2/2"]
    assert [text for text in shown.texts if text.startswith("evaluated")] == 3 * each
    shown = Heard()
    evaluate(folder, "last", device="cpu", progress=shown)
    assert shown.texts == each


def test_nothing_is_shown_outside_an_evaluation(capsys):
    with tracking(Progress()):
        assert list(track(iter("ab"))) == ["a", "b"]
    assert list(track("ab")) == ["a", "b"]
    assert capsys.readouterr().out == ""


def test_lines_about_a_long_evaluation(capsys, monkeypatch):
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    progress = PlainProgress()
    for parts in (range(5), iter(range(2))):
        with tracking(progress):
            list(track(parts))
    assert capsys.readouterr().out.splitlines() == ["evaluating, 3/5"]


def test_the_bar_of_an_evaluation_goes_when_it_ends():
    progress = LiveProgress()
    progress.begin("run", 0, 10)
    with tracking(progress):
        for _ in track(iter("abc"), 3):
            assert len(progress._bars.tasks) == 2
    assert len(progress._bars.tasks) == 1
    progress.close()
