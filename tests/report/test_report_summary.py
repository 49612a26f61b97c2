import statistics
from dataclasses import replace

import pytest
from records import HARDWARE, record, write_records

from equipool.report import markdown, order_in_words, read_runs, summarize
from equipool.report.groups import common_settings, group_runs

SUM = ([4.0, 2.0, 3.0], [4.0, 5.0, 5.0])
EQUILIBRIUM = ([1.0, 0.5, 0.25], [1.0, 0.1, 0.75])


@pytest.fixture
def runs(tmp_path):
    """Two seeds of two methods; a step of equilibrium takes twice as long."""
    return read_runs(
        write_records(
            tmp_path,
            *(record(values, "sum", seed=seed) for seed, values in enumerate(SUM)),
            *(
                record(values, "equilibrium", seed=seed, seconds_per_step=2.0)
                for seed, values in enumerate(EQUILIBRIUM)
            ),
        )
    )


def rows(runs):
    """Rows of the table as dictionaries."""
    table = summarize(runs)
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_the_numbers_are_those_of_the_records(runs):
    best, worst = rows(runs)
    assert best == {
        "aggregation": "equilibrium",
        "embedding": "8",
        "runs": "2",
        "steps": "30",
        "mean": "0.5",
        "deviation": f"{statistics.stdev([0.25, 0.75]):.3g}",
        "best run": "0.25",
        "best evaluation": "0.1",
        "/ best": "1",
        "mean at 30 s": "1",  # one evaluation within 30 seconds, at 20
    }
    assert (worst["aggregation"], worst["mean"], worst["best evaluation"]) == ("sum", "4", "2")
    assert (worst["/ best"], worst["mean at 30 s"]) == ("8", "4")


def test_the_order_in_words(runs):
    said = "Order by mse at embedding 8, best first: equilibrium 0.5, sum 4"
    assert order_in_words(runs) == said


def test_markdown(runs):
    lines = markdown(summarize(runs)).splitlines()
    assert lines[0].startswith("| aggregation | embedding | runs |")
    assert set(lines[1]) == {"|", " ", "-"}
    assert lines[2].startswith("| equilibrium | 8 | 2 | 30 | 0.5 |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


def test_sizes_and_other_settings_make_groups(tmp_path):
    wide = record([1.0], embedding=16)
    wide.config["training"]["learning_rate"] = 0.5
    records = [record([1.0]), record([3.0], seed=1), record([0.5], embedding=16), wide]
    found = rows(read_runs(write_records(tmp_path, *records)))
    told = [(row["embedding"], row["learning_rate"], row["runs"], row["/ best"]) for row in found]
    assert told == [("8", "0.001", "2", "1"), ("16", "0.001", "1", "1"), ("16", "0.5", "1", "2")]
    assert "aggregation" in found[0]


def test_what_changes_no_number_makes_no_group(tmp_path):
    other = record([1.0], seed=1)
    other.config["training"]["checkpoint_every"] = 7
    assert len(rows(read_runs(write_records(tmp_path, record([1.0]), other)))) == 1


def test_fields_of_the_same_name_are_told_apart(tmp_path):
    other = record([1.0])
    other.config["fields"]["width"] = 3
    other.config["training"]["width"] = 4
    groups = group_runs(read_runs(write_records(tmp_path, record([2.0]), other)))
    assert groups[0].settings["task.width"] == 3
    assert groups[0].settings["training.width"] == 4


def test_a_run_that_blew_up_is_not_averaged_away(tmp_path):
    bad = record([1.0, None], seed=1)
    files = write_records(tmp_path, record([1.0, 2.0]), bad, record([1.0, 9.0], "max"))
    found = rows(read_runs(files))
    assert [row["aggregation"] for row in found] == ["max", "sum"]
    row = found[-1]
    assert (row["mean"], row["deviation"], row["best run"]) == ("not finite", "not finite", "2")
    assert row["best evaluation"] == "1"


def test_seconds_of_different_devices_are_not_compared(tmp_path):
    others = (
        record([1.0], "max", hardware=HARDWARE | {"device": "cuda"}),
        record([1.0], "max", together=3),
    )
    for other in others:
        table = summarize(read_runs(write_records(tmp_path, record([1.0]), other)))
        assert table.headings[-1] == "/ best"


def test_seconds_are_compared_only_where_all_pieces_ran_alike(tmp_path):
    here = {"steps": 5, "hardware": HARDWARE, "together": 1, "versions": {}}
    same = record([1.0], "max", pieces=2, ran_on=[here, here | {"versions": {"torch": "3"}}])
    files = write_records(tmp_path, record([1.0]), same)
    assert summarize(read_runs(files)).headings[-1] == "mean at 10 s"
    for change in ({"together": 3}, {"hardware": HARDWARE | {"device": "cuda"}}):
        other = record([1.0], "max", pieces=2, ran_on=[here | change, here])
        files = write_records(tmp_path, record([1.0]), other)
        assert summarize(read_runs(files)).headings[-1] == "/ best"


def test_a_run_without_an_evaluation_by_then_has_none(tmp_path):
    slow = record([1.0], "max", seconds_per_step=9.0)
    bad = record([None, 2.0], "mean")
    found = {
        row["aggregation"]: row["mean at 20 s"]
        for row in rows(read_runs(write_records(tmp_path, record([4.0, 3.0]), slow, bad)))
    }
    assert found == {"sum": "3", "max": "-", "mean": "2"}
    bad = record([None], "mean")
    for row in rows(read_runs(write_records(tmp_path, record([4.0, 3.0]), slow, bad))):
        if row["aggregation"] == "mean":
            assert row["mean at 10 s"] == "not finite"


def test_higher_may_be_better(runs, monkeypatch):
    monkeypatch.setattr(runs[0].kind, "lower_is_better", False)
    assert [row["aggregation"] for row in rows(runs)] == ["sum", "equilibrium"]
    best = rows(runs)[0]
    assert (best["best run"], best["best evaluation"], best["/ best"]) == ("5", "5", "1")


def test_settings_that_are_common(runs):
    common = common_settings(runs)
    assert common["task.embedding"] == 8
    assert common["training.steps"] == 30
    assert "task.aggregation" not in common
    assert "task.seed" not in common


def test_unfinished_runs_are_marked(runs):
    runs = [replace(run, complete=False, steps=20, curve=run.curve[:2]) for run in runs[:1]] + runs[
        1:
    ]
    row = next(row for row in rows(runs) if row["aggregation"] == "sum")
    assert (row["runs"], row["steps"], row["mean"]) == ("2 (1 unfinished)", "20 to 30", "3.5")
