"""benchmarks/recipes.py."""

import json
from dataclasses import replace

import pytest
import recipes
from typer.testing import CliRunner


def test_every_number_of_steps_is_timed(tmp_path, monkeypatch):
    small = replace(recipes.TASK, set_size=4, batch_size=2, width=8, potential_output=2)
    monkeypatch.setattr(recipes, "TASK", small)
    out = tmp_path / "record.json"
    done = CliRunner().invoke(recipes.app, ["--repeats", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert {"commit", "hardware", "versions"} <= set(found)
    for seconds in found["seconds"].values():
        assert list(seconds) == ["5", "10", "20", "40"]
        assert all(value > 0 for value in seconds.values())


def test_the_recipe_draws_every_number_equally_often():
    assert recipes.recipe_cost({"5": 1, "10": 2, "20": 3, "40": 6, "80": 9}) == pytest.approx(3)
