"""The script that makes tables and pictures of the page about counting characters."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from counting_records import counting
from records import write_records

import tiny_omniglot as tiny
from equipool.report import markdown, read_runs
from equipool.report.groups import group_runs

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FIGURES)
    sys.modules.pop("omniglot", None)
    yield importlib.import_module("omniglot")
    sys.modules.pop("omniglot")


@pytest.fixture
def groups(tmp_path):
    return group_runs(
        read_runs(
            write_records(
                tmp_path,
                counting([0.25, 0.75, 0.5], [0.125, 0.25, 0.375], seed=0),
                counting([0.25, 0.5, 0.75], [0.25, 0.375, 0.625], seed=1),
                counting([0.1, 0.1, 0.1], [0.5, 0.5, 0.75], "equilibrium"),
            )
        )
    )


def rows(table):
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_the_results_are_those_of_the_records(script, groups):
    best, other = rows(script.results(groups))
    assert best["method"] == "equilibrium"  # by the test, not by the validation
    assert other == {
        "method": "sum",
        "seeds": "2",
        "test accuracy": "0.5 ± 0.177",
        "train accuracy": "1.62 ± 0.177",
        "test, at the best validation": "0.438 ± 0.265",  # 0.25 and 0.625
        "sets seen": "240",  # 30 steps of 8
        "seconds of training": "30",
        "sets a second": "8",
        "parameters": "1,234",
        "spikes": "0",
        "skipped": "0",
    }


def test_seconds_to_a_level(script, groups):
    """A run is evaluated after 10, 20 and 30 seconds."""
    best, other = rows(script.times(groups))
    assert list(best) == ["method", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %"]
    assert list(best.values()) == ["equilibrium", "10", "10", "10", "10", "30", "30"]
    # 20 and 10 seconds, 30 and 20; one of them never has 40 %
    assert list(other.values()) == ["sum", "15", "25", "-", "-", "-", "-"]


def test_seconds_are_those_of_a_run_alone(script, tmp_path):
    (tmp_path / "alone").mkdir()
    shared = read_runs(
        write_records(tmp_path, counting([0.5], [0.5]), counting([0.5], [0.5], "mean", seed=1))
    )
    alone = read_runs(write_records(tmp_path / "alone", counting([0.5, 0.5], [0.5, 0.5], seed=7)))
    alone = [replace(alone[0], training_seconds=4.0)]  # for 20 steps
    timed, other = script.timed(shared, alone)
    assert (timed.training_seconds, timed.curve[0]["training_seconds"]) == (2.0, 2.0)
    assert timed.curve[0]["metrics"] == shared[0].curve[0]["metrics"]
    assert other == shared[1]


def test_the_page_is_brought_up_to_date(script, groups):
    page = "# Title\n<!-- generated: times -->\nold\n<!-- end -->\ntext\n"
    new = script.refresh(page, groups)
    assert markdown(script.times(groups)) in new
    assert "old" not in new
    assert new.startswith("# Title\n<!-- generated: times -->\n")
    assert new.endswith("<!-- end -->\ntext\n")
    assert script.refresh(new, groups) == new


def test_the_pictures_are_drawn(script, groups, tmp_path, monkeypatch):
    script.draw_curves(groups, tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text()
    for told in ("equilibrium", "sum", "test_accuracy", "train_accuracy", "training steps"):
        assert told in drawn
    tiny.write_archive(tmp_path)
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
    small = script.OmniglotTask(image_size=8, validation_characters=10, evaluation_sets=300)
    monkeypatch.setattr(script, "OmniglotTask", lambda: small)
    script.draw_sets(tmp_path / "sets.png")
    assert (tmp_path / "sets.png").read_bytes().startswith(b"\x89PNG")
