"""The numbers of the tables are those of the records."""

import statistics
from dataclasses import replace

import pytest

from equipool.report import best_groups, markdown, summaries, summarize
from run_records import FOUR_SETTINGS, HARDWARE, changed, counting, record, rows, written

SUM = ([4.0, 2.0, 3.0], [4.0, 5.0, 5.0])
EQUILIBRIUM = ([1.0, 0.5, 0.25], [1.0, 0.1, 0.75])


@pytest.fixture
def runs(tmp_path):
    """Two seeds of two methods; a step of equilibrium takes twice as long."""
    return written(
        tmp_path / "runs",
        *(record(values, "sum", seed=seed) for seed, values in enumerate(SUM)),
        *(
            record(values, "equilibrium", seed=seed, seconds_per_step=2.0)
            for seed, values in enumerate(EQUILIBRIUM)
        ),
    )


def test_results_over_the_seeds(runs):
    best, worst = rows(summarize(runs))
    assert best == {
        "aggregation": "equilibrium",
        "embedding": "8",
        "runs": "2",
        "last step": "30",
        "mean": f"0.5 ± {statistics.stdev([0.25, 0.75]):.3g}",
        "best run": "0.25",
        "best evaluation": "0.1",
        "/ best": "1",
        "mean at 30 s": "1",  # one evaluation within 30 seconds, at 20
    }
    assert (worst["aggregation"], worst["best run"], worst["best evaluation"]) == ("sum", "3", "2")
    assert (worst["/ best"], worst["mean at 30 s"]) == ("8", "4")


def test_the_best_group_of_each_size_is_named_alone(runs, tmp_path):
    (line,) = best_groups(runs)
    assert "equilibrium" in line
    assert "0.5" in line
    assert "sum" not in line
    more = written(tmp_path / "more", *(record([3.0], a, embedding=16) for a in ("max", "sum")))
    assert ["16" in one for one in best_groups([*runs, *more])] == [False, True]
    assert best_groups(runs[:2]) == []  # nothing to compare


def test_markdown_has_the_cells_of_the_table(runs):
    table = summarize(runs)
    lines = [line.strip("| ").split(" | ") for line in markdown(table).splitlines()]
    assert tuple(lines[0]) == table.headings
    assert set("".join(lines[1])) == {"-"}
    assert [tuple(line) for line in lines[2:]] == list(table.rows)


def test_a_run_that_diverged_is_not_averaged_away(tmp_path):
    bad = record([1.0, None], seed=1)
    runs = written(tmp_path / "runs", record([1.0, 2.0]), bad, record([1.0, 9.0], "max"))
    good, row = rows(summarize(runs))
    assert good["aggregation"] == "max"
    assert (row["mean"], row["best run"]) == ("not finite", "2")
    assert row["best evaluation"] == "1"


def test_times_of_different_devices_are_not_compared(tmp_path):
    change = {"hardware": HARDWARE | {"device": "cuda"}}
    here = {"steps": 5, "hardware": HARDWARE, "versions": {}}
    alike = record([1.0], "max", ran_on=[here, here | {"versions": {"torch": "3"}}])
    mixed = record([1.0], "max", ran_on=[here | change, here])
    others = {"same": alike, "mixed": mixed, "other": record([1.0], "max", **change)}
    compared = {
        name: summarize(written(tmp_path / name, record([1.0]), other)).headings[-1] != "/ best"
        for name, other in others.items()
    }
    assert compared == {"same": True, "mixed": False, "other": False}


def test_results_at_equal_time_need_an_evaluation_by_then(tmp_path):
    slow = record([1.0], "max", seconds_per_step=9.0)
    bad = record([None], "mean", seconds_per_step=2.0)
    table = summarize(written(tmp_path / "runs", record([4.0, 3.0]), slow, bad))
    found = {row["aggregation"]: row["mean at 20 s"] for row in rows(table)}
    assert found == {"sum": "3", "max": "-", "mean": "not finite"}


def test_unfinished_runs_are_counted(runs):
    runs[0] = replace(runs[0], complete=False, steps=20, curve=runs[0].curve[:2])
    _, row = rows(summarize(runs))
    assert (row["runs"], row["last step"]) == ("2 (1 unfinished)", "20 to 30")
    assert row["mean"].split()[0] == "3.5"


def test_many_settings_are_one_column(tmp_path):
    made = [changed(record([2.0], "equilibrium"), **{name: 0.25}) for name in FOUR_SETTINGS]
    found = rows(summarize(written(tmp_path / "runs", record([1.0], "equilibrium"), *made)))
    assert found[0]["changed"] == "-"
    assert {row["changed"] for row in found[1:]} == {
        f"{name.replace('_', ' ').replace('.', ' ')} 0.25" for name in FOUR_SETTINGS
    }


def test_further_metrics_at_the_end_and_at_the_best_evaluation(tmp_path):
    runs = written(
        tmp_path / "runs",
        counting([0.25, 0.75, 0.5], [0.125, 0.25, 0.375], seed=0),
        counting([0.25, 0.5, 0.75], [0.125, 0.25, 0.625], seed=1),
        counting([0.5, 0.75, 0.875], [0.5, 0.5, 0.75], "equilibrium"),
    )
    first, further = summaries(runs)
    best, _ = rows(first)
    assert (best["aggregation"], best["mean"]) == ("equilibrium", "0.875")  # the largest
    equilibrium, sums = rows(further)
    assert equilibrium["test_accuracy"] == "0.75"
    assert sums["test_accuracy"] == "0.5 ± 0.177"  # of 0.375 and 0.625
    assert sums["test_accuracy at the best validation_accuracy"] == "0.438 ± 0.265"  # 0.25, 0.625
    del runs[0].curve[-1]["metrics"]["test_accuracy"]  # as in an older record
    assert rows(summaries(runs)[1])[1]["test_accuracy"] == "not finite"


def test_there_are_as_many_tables_as_needed(runs):
    assert len(summaries(runs)) == 1  # the median has no further metrics
    assert summaries([replace(run, curve=[]) for run in runs]) == []
