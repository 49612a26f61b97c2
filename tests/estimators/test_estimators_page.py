"""The guide's examples run, and show what it says."""

from python_blocks import run_page


def test_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_page("docs/estimators.md")
    bags, labels, classifier = found["bags"], found["labels"], found["classifier"]
    assert classifier.score(bags[80:], labels[80:]) > 0.7
    # the element that makes the bag positive speaks for it most
    assert found["influence"].argmin() == 0
