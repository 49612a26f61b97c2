"""The scripts of benchmarks/, examples/ and docs/figures/ run, at the smallest sizes."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from python_blocks import ROOT

CPU = torch.device("cpu")
FOLDERS = ("benchmarks", "docs/figures", "examples")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(ROOT / folder)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (found := getattr(sys.modules[name], "__file__", None)) and any(
            found.startswith(str(ROOT / folder)) for folder in FOLDERS
        ):
            del sys.modules[name]


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_record_is_a_header_and_a_line_for_each_row(tmp_path):
    from recording import header, write

    file = tmp_path / "x.jsonl"
    write(file, header(CPU), [{"part": "rows", "value": 1 / 3, "bad": math.nan}])
    head, row = lines(file)
    assert {"command", "date", "commit", "versions", "hardware"} <= head.keys()
    assert row == {"part": "rows", "value": 0.333333, "bad": None}


def test_a_finished_run_becomes_a_line(tmp_path):
    from add_record import line_of
    from records import Run

    entry = {"step": 5, "training_seconds": 1.0, "seconds": 2.0, "metrics": {"mse": 0.5}}
    record = {"seed": 1, "steps": 5, "complete": True, "seconds": 2.0, "training_seconds": 1.0,
              "num_parameters": 3, "spikes": 0, "skipped": 0, "curve": [entry], "config": {},
              "versions": {}, "hardware": {}, "date": "", "metrics": {}}  # fmt: skip
    (tmp_path / "record.json").write_text(json.dumps(record))
    run = Run(**line_of(tmp_path, "main", "sum"))
    assert run.curve == {"step": [5], "training_seconds": [1.0], "mse": [0.5]}


def test_a_path_is_timed():
    from timing import Case, measure

    case = Case(2, 3, 4, 4, (6, 2), num_steps=2)
    row = measure(case, "equipool", "float32", "training", CPU)
    assert row["reason"] == ""
    assert row["timing"]["median"] > 0


class TestBags:
    def test_trials_of_the_record_are_skipped(self, tmp_path):
        from bags import Trial, missing

        file, done, open_ = tmp_path / "b", Trial("fox", 0, 1, "sum"), Trial("fox", 0, 2, "sum")
        row = {"study": "folds", "dataset": "fox", "repeat": 0, "fold": 1, "method": "sum"}
        file.write_text("".join(json.dumps(x) + "\n" for x in ({"header": {}}, row)))
        assert missing([done, open_], file) == [open_]

    def test_both_recipes_train_and_are_tested_over_steps(self, monkeypatch):
        import converging

        monkeypatch.setattr(converging, "STEPS", (1, 3))
        generator = np.random.default_rng(0)
        bags = [generator.normal(size=(3, 2)).astype(np.float32) for _ in range(4)]
        labels = np.array([0, 1, 0, 1])
        for recipe in converging.RECIPES:
            network = converging.train(bags, labels, recipe, steps=1, seed=0)
            found = converging.evaluate(network, bags, labels)
            assert found["num_steps"] == [1, 3]
            assert found["residual"][1] < found["residual"][0]


def test_influence_agrees_with_deletion():
    import influence
    from medians import draw

    import equipool

    layer = equipool.EquilibriumAggregation(16, 16, **equipool.converging())
    network = influence.trained(layer, 3, 5, 0.0)
    network.layer.steps = influence.STEPS
    numbers, _ = draw(2, 5, torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = network.embedding(numbers.unsqueeze(-1))
    assert influence.accuracy(network, x)[0]["rank_correlation"] > 0.8
    found = influence.curves(network, x)["by"]
    assert found.keys() == {"random", "influence", "gradient times input"}


def test_training_of_an_option_is_measured():
    import stability

    row = stability.measure("steps + momentum + start", "hard", seeds=1, steps=3)
    assert [len(row[name]) for name in ("spikes", "errors", "first")] == [1, 1, 1]


@pytest.mark.parametrize("layer", ["convex", "huber", "trained"])
def test_an_edit_takes_fewer_steps_than_a_solve(layer, monkeypatch):
    import streaming

    monkeypatch.setattr(streaming, "TRAINING_STEPS", 2)
    row = streaming.replace_one(layer, torch.float64, 1e-3, 100, 2)
    assert row["ratio"]["median"] < 1
    assert streaming.edit_often(layer, 3, 12, 6)["largest_distance"] < 0.1


def test_gradients_and_solvers_are_compared(monkeypatch):

    import gradients

    monkeypatch.setattr(gradients, "NUMBERS", (3,))
    chosen = SimpleNamespace(training_steps=1, sets=2, device=CPU)
    rows = list(gradients.measure("convex", 2, chosen))
    parts = {row["part"]: row for row in rows}
    assert set(parts) == {"quality", "solvers", "stopping", "backward"}
    assert {row.get("way") for row in rows} > {"Unrolled", "Implicit, CG"}
    assert parts["stopping"]["largest_difference"] < 0.1


def test_the_demo_writes_a_page(tmp_path, monkeypatch, capsys):
    import demo

    monkeypatch.setattr(sys, "argv", ["demo.py", "--seconds", "0.05", "--out", str(tmp_path)])
    monkeypatch.setattr("functions.TEST_SIZES", {50: 20})
    threads = torch.get_num_threads()
    demo.main()
    torch.set_num_threads(threads)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    results = json.loads(page.split('id="results">')[1].split("<")[0])
    assert [one["name"] for one in results["functions"]] == list(demo.FUNCTIONS)
    assert all(len(one["errors"]) == 5 for one in results["functions"])
    assert "location" in capsys.readouterr().out


def test_functions_of_a_set(tmp_path, monkeypatch):
    import functions

    file = tmp_path / "record.jsonl"
    words = ["--seconds", "0.05", "--seeds", "1", "--functions", *functions.FUNCTIONS]
    monkeypatch.setattr(
        sys, "argv", ["functions.py", *words, "--poolings", "location", "--out", str(file)]
    )
    monkeypatch.setattr(functions, "TEST_SIZES", {50: 20})
    functions.main()
    _, *rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert {row["function"] for row in rows} == {*functions.FUNCTIONS}
    assert all(row["errors"]["50"] > 0 for row in rows)


def test_times_of_the_convex_equilibrium(tmp_path, monkeypatch):
    import location

    file = tmp_path / "record.jsonl"
    monkeypatch.setattr(location, "BATCHES", {"tiny": (4, 1, 5, 3)})
    monkeypatch.setattr(sys, "argv", ["location.py", "--seconds", "0.01", "--out", str(file)])
    location.main()
    _, *rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert len({row["path"] for row in rows}) == 10
    assert all(row["milliseconds"]["median"] > 0 for row in rows)
