"""Metrics beside the monitored one, of a task where more is better."""

import re

import pytest
from counting_records import counting
from records import record, write_folder, write_records

from equipool.experiments.registry import OmniglotTask
from equipool.report import read_runs, summaries, summarize, write_page
from equipool.report.groups import group_runs
from equipool.report.pictures import draw_curves, draw_reported
from equipool.training.artifacts import (
    Examination,
    Gallery,
    Picture,
    Table,
    examination_folder,
    write_examination,
)


@pytest.fixture
def runs(tmp_path):
    return read_runs(
        write_records(
            tmp_path,
            counting([0.25, 0.75, 0.5], [0.125, 0.25, 0.375], seed=0),
            counting([0.25, 0.5, 0.75], [0.125, 0.25, 0.625], seed=1),
            counting([0.5, 0.75, 0.875], [0.5, 0.5, 0.75], "equilibrium"),
        )
    )


def rows(table):
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_the_largest_is_the_best(runs):
    best, other = rows(summarize(runs))
    assert (best["aggregation"], best["mean"], best["/ best"]) == ("equilibrium", "0.875", "1")
    assert (other["mean"], other["best run"], other["best evaluation"]) == ("0.625", "0.75", "0.75")
    assert runs[0].best["step"] == 20


def test_further_metrics_at_the_end_and_where_the_monitored_one_was_best(runs):
    first, further = summaries(runs)
    assert first == summarize(runs)
    assert further.title == "omniglot: test_accuracy, train_accuracy"
    equilibrium, sums = rows(further)
    assert equilibrium["test_accuracy"] == "0.75"
    assert sums["test_accuracy"] == "0.5 ± 0.177"  # of 0.375 and 0.625
    assert sums["test_accuracy at the best validation_accuracy"] == "0.438 ± 0.265"  # 0.25, 0.625
    assert sums["train_accuracy"] == "1.62 ± 0.177"


def test_a_task_without_further_metrics_has_one_table(tmp_path):
    runs = read_runs(write_records(tmp_path, record([1.0])))
    assert len(summaries(runs)) == 1


def test_older_records_may_lack_a_metric(runs):
    del runs[0].curve[-1]["metrics"]["test_accuracy"]
    assert rows(summaries(runs)[1])[1]["test_accuracy"] == "not finite"
    assert draw_reported(group_runs(runs), OmniglotTask.reported)


def pixels(picture):
    from io import BytesIO

    from matplotlib.image import imread

    return imread(BytesIO(picture))


def test_the_picture_shows_all_of_the_metrics(runs):
    groups = group_runs(runs)
    metrics = OmniglotTask.reported
    before = pixels(draw_reported(groups, metrics))
    curves = pixels(draw_curves(groups))
    for metric in metrics:
        runs[-1].curve[1]["metrics"][metric] -= 0.25
        after = pixels(draw_reported(groups, metrics))
        assert (after != before).any()
        before = after
    assert (pixels(draw_curves(groups)) == curves).all()  # of the monitored metric alone


def test_accuracies_are_drawn_on_a_plain_axis(runs, monkeypatch):
    from matplotlib.axes import Axes

    monkeypatch.setattr(Axes, "set_yscale", lambda *_: pytest.fail("a logarithm"))
    draw_curves(group_runs(runs))


PNG = b"\x89PNG picture"
EXAMINATION = Examination(
    (Table("Shares", ("a", "b", "c"), (("x", 0.256, 1234),)),),
    (Gallery("Mistakes", (Picture("2 taken for <3>", PNG),)),),
)


@pytest.mark.parametrize("which", ["best", "last"])
def test_the_page_has_what_the_evaluation_found(tmp_path, which):
    made = counting([0.5, 0.75], [0.5, 0.75])
    write_folder(tmp_path / "run", made, [])
    write_examination(EXAMINATION, examination_folder(tmp_path / "run", which))
    (run,) = runs = read_runs([tmp_path / "run"])
    assert run.examinations == {which: EXAMINATION}
    write_page(runs, tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    for told in (
        "A closer look",
        f"run, {which} checkpoint",
        "Mistakes",
        "2 taken for &lt;3&gt;",
        "1,234",
        "25.6 %",
    ):
        assert told in html
    assert '<td style="--share: 26%">25.6 %</td>' in html
    sources = re.findall(r"src=\"([^\"]{30})", html)
    assert len(sources) == html.count("<img") == 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "<h2>test_accuracy, train_accuracy</h2>" in html


def test_best_and_last_are_both_shown(tmp_path):
    write_folder(tmp_path / "run", counting([0.5], [0.5]), [])
    last = Examination((Table("Last", ("a",), ()),))
    write_examination(last, examination_folder(tmp_path / "run", "last"))
    write_examination(EXAMINATION, examination_folder(tmp_path / "run", "best"))
    runs = read_runs([tmp_path / "run"])
    assert runs[0].examinations == {"best": EXAMINATION, "last": last}
    write_page(runs, tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert html.index("run, best checkpoint") < html.index("run, last checkpoint")
    assert html.index("Shares") < html.index("<h3>Last</h3>")
    assert html.count("<details open>") == 1


def test_without_an_evaluation_there_is_no_closer_look(runs, tmp_path):
    write_page(runs, tmp_path / "page.html")
    assert "A closer look" not in (tmp_path / "page.html").read_text()
