"""The tables of the page about counting characters."""

from dataclasses import replace

import pytest
from counting_records import made
from page_script import rows
from records import write_records

from equipool.report import read_runs
from equipool.training.artifacts import Examination, Table


def test_the_results_are_those_of_the_records(script, groups):
    best, other = rows(script.results(groups))
    assert best["method"] == "equilibrium"  # by the test, not by the validation
    assert best["learning rate"] == "0.0003"
    assert best["test"] == "75.0 %"  # one seed has no deviation
    assert other == {
        "method": "sum",
        "learning rate": "0.001",
        "seeds": "2",
        "test": "50.0 ± 17.7 %",
        "train": "25.0 ± 8.8 %",
        "test, best validation": "43.8 ± 26.5 %",  # 0.25 and 0.625
        "train, best validation": "21.9 ± 13.3 %",
        "validation, best": "75.0 ± 0.0 %",
    }


def test_what_the_runs_took(script, groups):
    _, other = rows(script.costs(groups))
    assert other == {
        "method": "sum",
        "sets seen": "240",  # 30 steps of 8
        "seconds of training": "30",
        "parameters": "1,234",
        "spikes": "0",
        "skipped": "0",
    }


def test_sums_and_means_over_the_seeds(script, tmp_path):
    seeds = (
        replace(made([0.5], seconds=1.0), spikes=1, skipped=2),
        replace(made([0.5], seconds=3.0, seed=1), spikes=4, skipped=8),
    )
    (row,) = rows(script.costs(script.grouped(read_runs(write_records(tmp_path, *seeds)))))
    assert (row["spikes"], row["skipped"], row["seconds of training"]) == ("5", "10", "20")


def test_sets_are_seen_up_to_the_last_evaluation(script, tmp_path):
    stopped = replace(made([0.5]), steps=19)
    (row,) = rows(script.costs(script.grouped(read_runs(write_records(tmp_path, stopped)))))
    assert row["sets seen"] == "80"  # 10 steps of 8


def test_best_first_is_by_the_last_step(script, tmp_path):
    records = made([0.75, 0.25], validation=[0.9, 0.1]), made([0.5, 0.5], "attention")
    found = script.grouped(read_runs(write_records(tmp_path, *records)))
    assert [group.method for group in found] == ["attention", "sum"]


def test_methods_of_one_name_are_told_apart(script, tmp_path):
    records = made([0.5]), made([0.25], learning_rate=0.01)
    groups = script.grouped(read_runs(write_records(tmp_path, *records)))
    assert [group.method for group in groups] == [
        "sum, learning_rate 0.001",
        "sum, learning_rate 0.01",
    ]


def test_an_accuracy_that_is_not_finite_is_no_accuracy(script):
    assert script.percent([0.5, None]) == "not finite"


def test_seconds_to_a_level(script, groups):
    """A run is evaluated after 10, 20 and 30 seconds."""
    best, other = rows(script.times(groups))
    levels = ["20 %", "25 %", "30 %", "35 %", "40 %", "45 %", "50 %", "60 %", "70 %"]
    assert list(best) == ["method", *levels]
    assert list(best.values()) == ["equilibrium", *["10"] * 7, "30", "30"]
    # 20 and 10 seconds, 30 and 20; one of them never has 40 %
    assert list(other.values()) == ["sum", "15", "15", "25", "25", *["-"] * 5]


def test_right_answers_by_number(script, groups):
    found = rows(script.by_number(groups))
    assert list(found[0]) == ["method", "when", *map(str, range(1, 11))]
    assert [(row["method"], row["when"]) for row in found] == [
        (method, when)
        for method in ("equilibrium", "sum")
        for when in ("best validation", "last step")
    ]
    _, best, selected, other = found
    assert (best["1"], best["2"], best["9"], best["10"]) == ("75.0", "37.5", "-", "7.5")
    assert (other["1"], other["10"]) == ("50.0", "5.0")  # of 0.375 and 0.625
    assert selected["1"] == "43.8"  # of 0.25 and 0.625


def test_seconds_are_those_of_a_run_alone(script, runs, alone):
    """Of batch size 8, not of 1,024."""
    best, other = rows(script.costs(script.grouped(script.timed(runs, alone))))
    assert best["seconds of training"] == "60"
    assert other["seconds of training"] == "15"


def test_every_run_needs_a_run_alone(script, runs, alone):
    with pytest.raises(ValueError, match="no run alone has the settings of 2"):
        script.blocks(runs, alone[:1], [], [], [], Examination())


def test_where_the_time_is_taken(script, alone):
    """The start is not in it where there are two evaluations."""
    late = [
        entry | {"training_seconds": entry["training_seconds"] + 99} for entry in alone[1].curve
    ]
    assert script.seconds_a_step(replace(alone[1], curve=late)) == 2.0
    assert script.steps_before(alone[1]) == 10
    assert script.seconds_a_step(alone[0]) == 0.5
    assert script.steps_before(alone[0]) == 0


def test_throughput(script, alone):
    small, equilibrium, large = rows(script.throughput(alone[::-1]))
    assert small == {
        "method": "sum",
        "batch size": "8",
        "precision": "32-true",
        "timed steps": "1 to 10",
        "ms a step": "500.00",
        "sets a second": "16",
    }
    assert list(equilibrium.values())[:4] == ["equilibrium", "8", "32-true", "11 to 20"]
    assert list(large.values()) == [
        "equilibrium", "1,024", "bf16-mixed", "11 to 20", "250.00", "4,096",
    ]  # fmt: skip


def test_the_quick_preset_is_told_with_all_its_seconds(script, runs):
    equilibrium, summed = rows(script.quick(runs))
    assert equilibrium["method"] == "equilibrium"
    assert summed == {
        "method": "sum",
        "steps": "30",
        "batch size": "8",
        "test accuracy": "50.0 ± 17.7 %",
        "train accuracy": "25.0 ± 8.8 %",
        "seconds": f"{round(runs[0].seconds):,}",
    }


def test_answers_are_wrong_by_so_much(script):
    """Of 10 sets of one character and 30 of three; sets of each true number count as many."""
    said = ("true", "1", "2", "3", "4", "sets")
    shares = ("1", 0.5, 0.2, 0.3, 0.0, 10), ("3", 0.1, 0.2, 0.6, 0.1, 30)
    shares = (shares[0], ("2", 0.0, 0.0, 0.0, 0.0, 0), shares[1])
    tables = (
        Table("What is said of sets of test characters", said, shares),
        Table("What is said of sets of validation characters", said, shares[:2]),
        Table("Right answers, by the number of characters", said, shares),
    )
    validation, test = rows(script.miscounts(Examination(tables)))
    assert validation["sets of"] == "validation characters"
    assert validation["right"] == "50.0 %"
    assert list(test.values())[1:] == ["7.5 %", "15.0 %", "57.5 %", "12.5 %", "7.5 %"]
