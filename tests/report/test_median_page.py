"""The script that makes tables and pictures of the page about the median."""

import json
from dataclasses import replace

import pytest
from page_script import check_main, check_page, load_script, needs_page, page_of_blocks, rows
from records import record, write_folder, write_records, written

from equipool.report import read_runs

script = load_script("median")


def made(values, aggregation, seed=0, embedding=16, **changed):
    """A record with an evaluation every 10 steps; uniform sets have half the error, gamma none,
    normal ones twice."""
    one = record(values, aggregation, seed=seed, embedding=embedding, **changed)
    for entry in one.curve:
        error = entry["metrics"]["mse"]
        of_kinds = {"mse_uniform": error / 2, "mse_gamma": 0.0, "mse_normal": 2 * error}
        entry["metrics"] |= of_kinds
    return one


def alone(aggregation, seconds_per_step):
    return made([1.0, 1.0], aggregation, seed=9, seconds_per_step=seconds_per_step)


@pytest.fixture(autouse=True)
def _steps(monkeypatch):
    monkeypatch.setattr(script, "MAIN_STEPS", 40)


@pytest.fixture
def runs(tmp_path):
    """Of 40 steps at size 16, which shared the device: 100 seconds a step; and of 20 steps."""
    return read_runs(
        write_records(
            tmp_path,
            made([8.0, 6.0, 5.0, 5.0], "sum", 0, spikes=2, seconds_per_step=100),
            made([8.0, 6.0, 5.0, 1.0], "sum", 1, spikes=1, skipped=4, seconds_per_step=100),
            made([9.0, 9.0, 9.0, 6.0], "attention", 0, seconds_per_step=100),
            made([9.0, 0.1, 0.3, 0.5], "equilibrium", 0, seconds_per_step=100, num_parameters=9),
            made([9.0, 0.5, 0.5, 0.25], "equilibrium", 1, seconds_per_step=100, num_parameters=9),
            made([9.0, 0.5], "equilibrium", embedding=8),
            made([9.0, 2.0], "sum", embedding=8),
            made([9.0, 1.0], "sum", embedding=64),
            made([9.0, 5.0], "equilibrium", embedding=64),
        )
    )


@pytest.fixture
def speeds(tmp_path):
    """A step of equilibrium takes as long as four of the sum."""
    some = alone("sum", 0.1), alone("attention", 0.2), alone("equilibrium", 0.4)
    return written(tmp_path / "speed", *some)


def test_runs_that_were_stopped_stand_beside_those_of_the_experiment(runs, speeds, tmp_path):
    """Of the same method, size and seed, at the same steps."""
    slow = made([7.0, 4.0, 3.0], "sum")
    slow.config["training"] |= {"learning_rate": 1e-4, "steps": 40}
    write_folder(tmp_path / "slow", slow, [], record=False)
    table = script.tables(runs, speeds, [], script.recorded(tmp_path / "slow"))["rates"]
    assert table.headings == ("method", "learning rate", "step 10", "step 20", "step 30")
    assert table.rows == (
        ("sum", "0.001", "8", "6", "5"),
        ("sum", "0.0001", "7", "4", "3"),
    )
    longer = written(tmp_path / "longer", made([7.0, 6.0, 5.0, 4.0, 3.0], "attention"))
    last = script.tables(runs, speeds, [], longer)["rates"].rows[0]
    assert last == ("attention", "0.001", "9", "9", "9", "6", "-")
    small = written(tmp_path / "small", made([7.0], "sum", embedding=8))
    assert script.tables(runs, speeds, [], small)["rates"].rows == (("sum", "0.001", "7"),)


def test_the_errors_of_the_seeds_beside_the_rivals(runs, speeds):
    best, sums, attention = rows(script.tables(runs, speeds, [])["results"])
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
    assert (sums["method"], sums["mean squared error"]) == ("sum", "3 ± 2.83")
    assert (sums["/ best rival's"], sums["/ best rival's best"]) == ("8", "4")
    assert (sums["spikes"], sums["skipped"], sums["parameters"]) == ("3", "4", "1,234")
    assert (attention["method"], attention["mean squared error"]) == ("attention", "6")
    assert attention["/ best rival's"] == "16"


def test_variants_of_a_method_are_not_its_rivals(tmp_path, speeds):
    plain, other = (made([1.0, 1.0, 1.0, error], "sum") for error in (2.0, 1.0))
    training = other.config["training"] | {"clip_norm": 0.5}
    other = replace(other, config=other.config | {"training": training})
    files = write_records(tmp_path, plain, other, made([1.0, 1.0, 1.0, 4.0], "attention"))
    found = rows(script.tables(read_runs(files), speeds, [])["results"])
    assert [(row["method"], row["/ best rival's"]) for row in found] == [
        ("sum, clip_norm 0.5", "0.25"),
        ("sum, clip_norm 1.0", "0.5"),
        ("attention", "4"),
    ]


def test_a_run_that_ends_in_no_number(tmp_path, speeds):
    one = replace(made([1.0, 1.0, 1.0, 1.0], "sum"))
    one.curve[-1]["metrics"] = dict.fromkeys(one.curve[-1]["metrics"])
    files = write_records(tmp_path, one, made([1.0, 1.0, 1.0, 4.0], "attention"))
    attention, broken = rows(script.tables(read_runs(files), speeds, [])["results"])
    assert (attention["method"], attention["/ best rival's"]) == ("attention", "-")
    assert (broken["mean squared error"], broken["/ best rival's"]) == ("not finite", "-")


def test_further_sizes_are_told_by_size(runs, speeds):
    found = rows(script.tables(runs, speeds, [])["sizes"])
    assert [
        (row["D"], row["method"], row["steps"], row["mean squared error"], row["/ best rival's"])
        for row in found
    ] == [
        ("8", "equilibrium", "20", "0.5", "0.25"),
        ("8", "sum", "20", "2", "4"),
        ("64", "sum", "20", "1", "0.2"),
        ("64", "equilibrium", "20", "5", "5"),
    ]


def test_a_main_run_that_was_stopped_is_no_further_size(tmp_path, speeds):
    one = made([1.0, 1.0, 1.0, 1.0], "sum")
    stopped = replace(one, steps=25, curve=one.curve[:2], complete=False)
    runs = read_runs(write_records(tmp_path, stopped))
    found = script.tables(runs, speeds, [])
    assert [row["steps"] for row in rows(found["results"])] == ["20"]
    assert found["sizes"].rows == ()


def test_errors_after_equal_seconds(runs, speeds):
    """All steps of the sum take 4 seconds, of attention 8, of equilibrium 16."""
    table = script.tables(runs, speeds, [])["seconds"]
    moments = ("after 2 s", "after 4 s", "after 8 s", "after 16 s")
    assert table.headings == ("D", "method", "ms a step", *moments)
    assert table.rows == (
        ("16", "equilibrium", "400", "-", "9 (step 10)", "0.3 (step 20)", "0.375 (step 40)"),
        ("16", "sum", "100", "6 (step 20)", "3 (step 40)", "3 (step 40)", "3 (step 40)"),
        ("16", "attention", "200", "9 (step 10)", "9 (step 20)", "6 (step 40)", "6 (step 40)"),
    )


def test_all_steps_are_those_of_the_longest_run(tmp_path, speeds):
    """40 steps of 0.1 seconds, and 80."""
    seeds = made([1.0] * 4, "sum"), replace(made([1.0] * 4, "sum", 1), steps=80)
    table = script.tables(read_runs(write_records(tmp_path, *seeds)), speeds, [])["seconds"]
    assert table.headings[3:] == ("after 4 s", "after 8 s")


def test_every_method_of_the_main_experiment_needs_a_run_alone(runs, speeds):
    with pytest.raises(ValueError, match="no run alone has the settings of 3, 4"):
        script.tables(runs, speeds[:2], [])


def test_settings_that_were_changed(tmp_path):
    def tried(error, seed=0, **fields):
        one = made([9.0, error], "equilibrium", seed, spikes=1)
        return replace(one, config=one.config | {"fields": one.config["fields"] | fields})

    plain = [tried(1.0), tried(3.0, 1)]
    more = tried(1.0, inner_momentum=0.5), tried(8.0, potential_output=8)
    table = script.settings(read_runs(write_records(tmp_path, *more, *plain)))
    assert table.rows == (
        ("equilibrium, solver momentum 0.5", "1", "20", "1", "0.5", "1", "1", "0"),
        ("equilibrium", "2", "20", "2 ± 1.41", "1", "1", "2", "0"),
        ("equilibrium, potential output 8", "1", "20", "8", "4", "8", "1", "0"),
    )


def test_the_pictures_are_drawn_from_their_runs(runs, speeds, tmp_path, monkeypatch):
    drawn = {}

    def keep(name):
        return lambda given: drawn.setdefault(name, given) and name.encode()

    for name in ("draw_curves", "draw_inner"):
        monkeypatch.setattr(script, name, keep(name))
    point = {"step": 10, "inner": {"aggregation": {"residual": 0.5}}, "spikes": 0, "skipped": 0}
    write_folder(tmp_path / "inner", made([1.0], "equilibrium"), [point])
    found = script.pictures(runs, speeds, read_runs([tmp_path / "inner"]))
    assert found == {"curves": b"draw_curves", "inner": b"draw_inner"}
    told = [(group.method, group.size) for group in drawn["draw_curves"]]
    assert told == [("equilibrium", 16), ("sum", 16), ("attention", 16)]
    first = drawn["draw_curves"][0].runs[0]
    assert first.training_seconds == 16  # alone
    (line,) = drawn["draw_inner"]
    assert (line.label, line.steps) == ("equilibrium, embedding 16", [10])
    assert line.entries == [{"residual": 0.5}]


def test_all_is_made_from_the_folders_of_records(tmp_path, monkeypatch):
    names = ("ran_on", "results", "sizes", "seconds", "settings", "frozen", "search")
    records = page_of_blocks(script, tmp_path, monkeypatch, *names)
    shorter = made([1.0], "sum", embedding=8)
    written(records / "median", made([1.0, 1.0, 1.0, 0.5], "sum"), shorter)
    written(records / "median-speed", alone("sum", 0.1))
    written(records / "median-settings", made([1.0, 3.0], "sum"))
    (records / "median-inner").mkdir()
    point = {"step": 10, "inner": {"aggregation": {"residual": 0.5}}, "spikes": 0, "skipped": 0}
    write_folder(records / "median-inner" / "run", made([1.0], "equilibrium"), [point])
    write_networks(records / "median-networks", [9.0, 2.0, 1.0], [9.0, 4.0, 1.0])
    lines = (
        "\n2 runs on abacus, torch 2.13.0.\n",
        "| equilibrium | 2 | 1.50%, 1.50% |\n| sum | 1 | 0.00% |",
        "| 0 | 2 | 9 ± 0 | - | - | 1 |",
        "| 1 | 2 | 3 ± 1.41 | 0.25 | 0% to 25% | 0.5 |",
        "| **2** | 2 | 1 ± 0 | 0.17 | 0% to 25% | 0.25 |",  # as trained
        "| 16 | sum | 1 | 40 | 0.5 | - |",
        "| 8 | sum | 1 | 10 | 1 | - |",
        "| 16 | sum | 100 | 1 (step 20) | 0.5 (step 40) |",
        "| sum | 1 | 20 | 3 | 1 | 3 |",
    )
    check_main(script, lines, {"median-curves.png", "median-inner.png"})


def write_networks(folder, *errors):
    """What was found of networks that were trained with 2 inner steps, and of a sum."""
    folder.mkdir()
    config = {"fields": {"inner_steps": 2, "aggregation": "equilibrium"}}
    for index, of_one in enumerate(errors):
        search = [
            {"steps": n, "mse": error, "gradient": (index + 1) * 8 / 2**n, "length": 0.5 / (n + 1),
             "at_limit": index / 4}
            for n, error in enumerate(of_one)
        ]  # fmt: skip
        content = {"config": config, "spikes": 0.015, "search": search}
        (folder / f"{index}.json").write_text(json.dumps(content))
    config = {"fields": {"inner_steps": 2, "aggregation": "sum"}}
    (folder / "sum.json").write_text(json.dumps({"config": config, "spikes": 0.0}))


@needs_page("median")
def test_the_page_is_that_of_the_records():
    own = load_script("median")  # with its own number of steps
    check_page("median", own.tables(*own.read()[:4], own.read_networks()))
