"""The guide's examples run, and show what it says."""

from equipool.estimators import training
from python_blocks import run_page


def test_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "STEPS", (30, 4000))  # a third of the usual ones
    found = run_page("docs/estimators.md")
    bags, labels, classifier = found["bags"], found["labels"], found["classifier"]
    assert classifier.score(bags[60:], labels[60:]) > 0.7
    # the element that makes the bag positive speaks for it most
    assert found["influence"][0].argmax() == 0
