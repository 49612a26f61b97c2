"""The page: one file with everything in it."""

import re

import pytest

from equipool import extras
from equipool.experiments.presets import EXPERIMENTS
from equipool.report import page, read_runs, summarize, write_page
from equipool.report.page import learning_curves, training_loss
from run_records import counting, log_point, record, write_folder, write_records, written

INNER = {"residual": 0.1, "aux_loss": 0.2}


def point(step):
    return log_point(step, inner={"pool": INNER})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods and two sizes, and an interrupted run."""
    folder = tmp_path_factory.mktemp("runs")
    first = record([2.0, 1.0], "equilibrium", skipped=7)
    write_folder(folder / "finished", first, [point(10)])
    stopped = record([3.0, 2.0, 1.0], "equilibrium", embedding=16)
    stopped.curve.pop()
    write_folder(folder / "stopped", stopped, [point(10), point(24)], record=False)
    others = (record([3.0, 2.5]), record([3.0, 2.25], embedding=16))
    return read_runs([folder / "finished", folder / "stopped", *write_records(folder, *others)])


@pytest.fixture(scope="module")
def html(runs, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "new" / "page.html"
    write_page(runs, file)
    return file.read_text()


def test_the_page_has_the_numbers(runs, html):
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>.*?</tr>", html)]
    for row in summarize(runs).rows:
        assert list(row) in cells
    for told in ("training.steps", "torch 2.13.0", "abacus"):
        assert told in html
    (row,) = [row for row in cells if row and row[0] == "finished"]
    assert "7" in row  # skipped steps


def test_the_page_needs_no_other_file(html):
    sources = re.findall(r"src=\"([^\"]{30})", html)
    assert len(sources) == html.count("<img") > 1
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in html
    assert not re.search(r"<(script|link|iframe)", html)
    assert "url(" not in html


def test_an_interrupted_run_has_its_curve_and_its_progress(runs, html):
    (section,) = learning_curves(runs)
    text = " ".join(section.text)
    assert "stopped (step 24 of 30)" in text
    assert "finished (step" not in text
    assert "24 of 30" in html


def settings_text(folder, *records):
    (section,) = page.settings(written(folder, *records))
    return " ".join(section.text)


def test_settings_that_differ_are_named_and_no_others(tmp_path):
    seeds = settings_text(tmp_path / "a", record([1.0]), record([1.0], seed=1))
    assert "task.seed" in seeds
    methods = settings_text(tmp_path / "b", record([1.0]), record([2.0], "max"))
    assert "task.aggregation" in methods
    assert "seed" not in methods
    assert "differ" not in settings_text(tmp_path / "c", record([1.0]))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_does_not_claim_the_papers_settings(name):
    """Docstrings of tasks describe their defaults, which a preset or a flag changes."""
    about = page.first_sentence(EXPERIMENTS[name].task().__doc__)
    assert about.endswith(".")
    assert "paper" not in about
    assert "default" not in about


def test_a_run_that_was_never_evaluated_has_its_loss_in_the_page(tmp_path, drawn):
    made = record([1.0, 1.0])
    made.curve.clear()
    write_folder(tmp_path / "run", made, [point(5), point(10)], record=False)
    runs = read_runs([tmp_path])
    assert learning_curves(runs) == []
    (section,) = training_loss(runs)
    assert "run (step 10 of 20)" in " ".join(section.text)
    write_page(runs, tmp_path / "page.html")
    assert "10 of 20" in (tmp_path / "page.html").read_text()


def test_sections_without_content_are_left_out(tmp_path, drawn):
    runs = written(tmp_path / "runs", record([2.0, None]), record([1.0, 2.0], "max"))
    titles = [section.title for make in page.SECTIONS for section in make(runs)]
    assert titles == ["Results", "Learning curves", "Runs", "Settings"]


def test_further_metrics_have_a_picture_each(tmp_path, drawn):
    runs = written(tmp_path / "runs", counting([0.5], [0.25]))
    (curves,), (results,) = learning_curves(runs), page.results(runs)
    names = ["validation_accuracy", "test_accuracy", "train_accuracy"]
    assert [picture.caption.split()[0] for picture in curves.pictures] == names
    assert len(results.tables) == 2


def test_a_missing_extra_is_named(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(ImportError, match=r'needs jinja2. Run: pip install "equipool\[report\]"'):
        write_page(runs, tmp_path / "page.html")
