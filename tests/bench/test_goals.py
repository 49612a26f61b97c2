"""The script that compares records with the project's targets."""

from dataclasses import replace

import goals
import pytest
from test_record import AGREEMENT, layer_record, record, row

from equipool.bench.cases import Case
from python_blocks import ROOT


def missed(*records):
    return {goal.name for goal in goals.find_goals(records) if not goal.reached}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"ms": 2.1}, ["8 sets: ms"]),
        ({"ms": 2.3}, ["8 sets: ms", "8 sets: times faster"]),
        ({"memory": 1550.0}, ["2048 sets: MiB"]),
        ({"memory": 2000.0}, ["2048 sets: MiB", "2048 sets: times less memory"]),
    ],
)
def test_targets_of_the_layer(changed, expected):
    found = missed(layer_record(**changed))
    assert len(found) == len(expected)
    for name in expected:
        sets, what = name.split(": ")
        assert any(goal.startswith(sets) and what in goal for goal in found)


@pytest.mark.parametrize(("memory", "ok"), [(109.0, True), (112.0, False)])
def test_memory_may_grow_by_one_output_per_step(memory, ok):
    few, many = (Case(256, 26, num_steps=num_steps) for num_steps in (5, 50))
    kept = 45 * 256 * 300 * 4 / 2**20
    rows = row(few, "equipool", 1.0, 100.0), row(many, "equipool", 9.0, memory + kept)
    assert (not missed(record("steps", "num_steps", *rows))) == ok


@pytest.mark.parametrize(("ms", "ok"), [(11.0, True), (13.0, False)])
def test_time_is_linear_in_elements(ms, ok):
    small, large = (Case(1, n, varied=False) for n in (10**5, 10**6))
    rows = row(small, "equipool", 1.0), row(large, "equipool", ms)
    assert (not missed(record("elements", "elements", *rows))) == ok


def test_targets_of_networks():
    gin, median = Case(256, 26, workload="gin"), Case(256, 100, workload="median")
    sums = [row(gin, path, 2.0) for path in ("sum", "sum-captured")]
    other = row(gin, "sum-captured", 1.0, precision="bf16")  # is not what float32 is compared with

    def found(typed, captured, in_median):
        rows = (row(gin, "equipool", typed), row(gin, "equipool-captured", captured))
        rows += row(median, "equipool-captured", in_median), row(median, "equipool", 0.1)
        return missed(record("networks", "workload", *sums, other, *rows))

    assert found(2.9, 4.3, 2.1) == set()
    assert found(3.1, 4.5, 2.3) == {
        "GIN, equipool float32: times the step of sum",
        "GIN, equipool-captured float32: times the step of sum-captured",
        "median, equipool-captured float32: ms",
    }
    alone = record("gin", "sets", *sums, row(gin, "equipool-captured", 4.5))
    assert len(missed(alone)) == 1


def test_coarse_and_refused_rows_miss_a_target():
    case = Case(8, 26)
    coarse = row(case, "equipool", 1.0, agreement=replace(AGREEMENT, output=2e-5))
    refused = replace(row(case, "equipool-torch", 1.0), status="disagrees", timing=None)
    found = missed(record("width", "in_channels", coarse, refused))
    assert len(found) == 2


def test_the_exit_status_tells_whether_all_are_reached(tmp_path, capsys):
    layer_record().write(tmp_path / "good.json")
    layer_record(ms=2.3).write(tmp_path / "bad.json")
    other = ROOT / "benchmarks" / "records" / "cpu-stability.json"
    assert goals.main([tmp_path / "good.json", other]) == 0
    assert goals.main([tmp_path / "bad.json"]) == 1
    assert "MISSED" in capsys.readouterr().out
