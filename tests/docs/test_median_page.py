"""The tables and figures of the page about the median."""

import json
from dataclasses import replace

import pytest
from figure_scripts import check_page, load_script, needs_page, use_folder

from run_records import changed, record, rows, write_folder, written

script = load_script("median")


def made(values, aggregation, seed=0, embedding=16, **more):
    """A record whose error on uniform sets is half as large, on normal ones twice."""
    one = record(values, aggregation, seed=seed, embedding=embedding, **more)
    for entry in one.curve:
        error = entry["metrics"]["mse"]
        entry["metrics"] |= {"mse_uniform": error / 2, "mse_gamma": 0.0, "mse_normal": 2 * error}
    return one


@pytest.fixture
def short(monkeypatch):
    """A main run has 40 steps."""
    monkeypatch.setattr(script, "MAIN_STEPS", 40)


@pytest.fixture
def runs(short, tmp_path):
    """Main runs at size 16, which shared the device, and short ones of other sizes."""
    return written(
        tmp_path / "runs",
        made([8.0, 6.0, 5.0, 5.0], "sum", 0, spikes=2, seconds_per_step=100),
        made([8.0, 6.0, 5.0, 1.0], "sum", 1, spikes=1, skipped=4, seconds_per_step=100),
        made([9.0, 9.0, 9.0, 6.0], "attention", 0, seconds_per_step=100),
        made([9.0, 0.1, 0.3, 0.5], "equilibrium", 0, seconds_per_step=100, num_parameters=9),
        made([9.0, 0.5, 0.5, 0.25], "equilibrium", 1, seconds_per_step=100, num_parameters=9),
        made([9.0, 0.5], "equilibrium", embedding=8),
        made([9.0, 2.0], "sum", embedding=8),
    )


@pytest.fixture
def solo(tmp_path):
    seconds = {"sum": 0.1, "attention": 0.2, "equilibrium": 0.4}
    some = (made([1.0, 1.0], name, 9, seconds_per_step=s) for name, s in seconds.items())
    return written(tmp_path / "speed", *some)


def test_errors_over_the_seeds_beside_the_rivals(runs, solo):
    best, sums, attention = rows(script.tables(runs, solo, [])["results"])
    assert best == {
        "D": "16",
        "method": "equilibrium",
        "seeds": "2",
        "steps": "40",
        "mean squared error": "0.375 ± 0.177",
        "/ best rival's": "0.125",  # 0.375 / 3
        "best seed": "0.25",
        "/ best rival's best": "0.25",  # 0.25 / 1
        "uniform": "0.188",
        "gamma": "0",
        "normal": "0.75",
        "parameters": "9",
        "spikes": "0",
        "skipped": "0",
    }
    assert (sums["method"], sums["/ best rival's"], sums["/ best rival's best"]) == (
        "sum",
        "8",
        "4",
    )
    assert (sums["spikes"], sums["skipped"]) == ("3", "4")
    assert (attention["method"], attention["/ best rival's"]) == ("attention", "16")


def test_variants_of_a_method_are_not_its_rivals(short, tmp_path, solo):
    records = [
        made([1.0, 1.0, 1.0, 2.0], "sum"),
        changed(made([1.0, 1.0, 1.0, 1.0], "sum"), {"clip_norm": 0.5}),
        made([1.0, 1.0, 1.0, 4.0], "attention"),
    ]
    found = rows(script.tables(written(tmp_path / "runs", *records), solo, [])["results"])
    assert [row["/ best rival's"] for row in found] == ["0.25", "0.5", "4"]


def test_a_run_that_diverged_has_no_ratio(short, tmp_path, solo):
    one = made([1.0] * 4, "sum")
    one.curve[-1]["metrics"] = dict.fromkeys(one.curve[-1]["metrics"])
    runs = written(tmp_path / "runs", one, made([4.0] * 4, "attention"))
    attention, broken = rows(script.tables(runs, solo, [])["results"])
    assert (attention["method"], attention["/ best rival's"]) == ("attention", "-")
    assert (broken["mean squared error"], broken["/ best rival's"]) == ("not finite", "-")


def test_short_runs_are_in_the_table_of_sizes(runs, solo):
    found = rows(script.tables(runs, solo, [])["sizes"])
    assert [(row["D"], row["method"], row["mean squared error"]) for row in found] == [
        ("8", "equilibrium", "0.5"),
        ("8", "sum", "2"),
    ]
    stopped = replace(runs[0], steps=25, curve=runs[0].curve[:2], complete=False)
    tables = script.tables([stopped], solo, [])
    assert [row["steps"] for row in rows(tables["results"])] == ["20"]  # still a main run
    assert tables["sizes"].rows == ()


def test_errors_after_equal_time(runs, solo):
    """All steps of the sum take 4 seconds, of attention 8, of equilibrium 16."""
    table = script.tables(runs, solo, [])["seconds"]
    assert table.headings[3:] == ("after 2 s", "after 4 s", "after 8 s", "after 16 s")
    assert table.rows == (
        ("16", "equilibrium", "400", "-", "9 (step 10)", "0.3 (step 20)", "0.375 (step 40)"),
        ("16", "sum", "100", "6 (step 20)", "3 (step 40)", "3 (step 40)", "3 (step 40)"),
        ("16", "attention", "200", "9 (step 10)", "9 (step 20)", "6 (step 40)", "6 (step 40)"),
    )
    with pytest.raises(ValueError, match="no solo run has the settings of 3, 4"):
        script.tables(runs, solo[:2], [])


def test_stopped_runs_stand_beside_those_of_the_experiment(runs, solo, tmp_path):
    slow = changed(made([7.0, 4.0, 3.0], "sum"), {"learning_rate": 1e-4, "steps": 40})
    write_folder(tmp_path / "slow", slow, [], record=False)
    table = script.tables(runs, solo, [], script.read_folder(tmp_path / "slow"))["rates"]
    assert table.rows == (("sum", "0.001", "8", "6", "5"), ("sum", "0.0001", "7", "4", "3"))


def test_changed_settings_are_compared_with_the_usual_ones(tmp_path):
    records = [
        changed(made([9.0, 1.0], "equilibrium"), **{"solver.momentum": 0.5}),
        changed(made([9.0, 8.0], "equilibrium"), potential_output=8),
        made([9.0, 1.0], "equilibrium", 0),
        made([9.0, 3.0], "equilibrium", 1),
    ]
    table = script.settings(written(tmp_path / "runs", *records))
    assert [(row[0], row[1], row[3], row[4]) for row in table.rows] == [
        ("equilibrium, solver momentum 0.5", "1", "1", "0.5"),
        ("equilibrium", "2", "2 ± 1.41", "1"),
        ("equilibrium, potential output 8", "1", "8", "4"),
    ]


def test_the_search_beyond_the_steps_of_training():
    """Two networks trained with 2 inner steps, and a sum."""
    networks = [{"config": {"fields": {"inner_steps": 2, "aggregation": "sum"}}, "spikes": 0.0}]
    for index, errors in enumerate(([9.0, 2.0, 1.0], [9.0, 4.0, 1.0])):
        search = [
            {"steps": n, "mse": error, "gradient": (index + 1) * 8 / 2**n, "length": 0.5 / (n + 1),
             "at_limit": index / 4}
            for n, error in enumerate(errors)
        ]  # fmt: skip
        fields = {"inner_steps": 2, "aggregation": "equilibrium"}
        networks.append({"config": {"fields": fields}, "spikes": 0.015, "search": search})
    assert script.frozen(networks).rows == (
        ("equilibrium", "2", "1.50%, 1.50%"),
        ("sum", "1", "0.00%"),
    )
    assert script.search(networks).rows == (
        ("0", "2", "9 ± 0", "-", "-", "1"),
        ("1", "2", "3 ± 1.41", "0.25", "0% to 25%", "0.5"),
        ("**2**", "2", "1 ± 0", "0.17", "0% to 25%", "0.25"),  # as trained
    )


def test_the_script_reads_records_and_writes_page_and_figures(short, tmp_path, monkeypatch):
    records = use_folder(script, tmp_path, monkeypatch, "results", "sizes", "frozen")
    written(records / "median", made([1.0, 1.0, 1.0, 0.5], "sum"), made([1.0], "sum", embedding=8))
    written(records / "median-speed", made([1.0, 1.0], "sum", 9, seconds_per_step=0.1))
    written(records / "median-settings", made([1.0, 3.0], "sum"))
    point = {"step": 10, "inner": {"aggregation": {"residual": 0.5}}, "spikes": 0, "skipped": 0}
    (records / "median-inner").mkdir()
    write_folder(records / "median-inner" / "run", made([1.0], "equilibrium"), [point])
    (records / "median-networks").mkdir()
    network = {"config": {"fields": {"inner_steps": 2, "aggregation": "sum"}}, "spikes": 0.25}
    (records / "median-networks" / "sum.json").write_text(json.dumps(network))
    given = []
    monkeypatch.setattr(script, "draw_curves", lambda groups: given.append(groups) or b"curves")
    monkeypatch.setattr(script, "draw_inner", lambda curves: b"inner")
    script.main()
    assert (script.FIGURES / "median-curves.png").read_bytes() == b"curves"
    assert (script.FIGURES / "median-inner.png").read_bytes() == b"inner"
    ((group,),) = given
    assert group.runs[0].training_seconds == pytest.approx(4)  # of the solo run
    for row in ("| 16 | sum | 1 | 40 | 0.5 |", "| 8 | sum | 1 | 10 | 1 |", "| sum | 1 | 25.00% |"):
        assert row in script.PAGE.read_text()


@needs_page("median")
def test_the_numbers_of_the_page_are_those_of_the_records():
    check_page("median", script.tables(*script.read()[:4], script.read_networks()))
