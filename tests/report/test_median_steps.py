"""The script that evaluates trained networks with other numbers of inner steps."""

import json

import pytest
from page_script import load_script

from equipool.tasks import MedianTask
from equipool.training import TrainingConfig, evaluate, train

script = load_script("median_steps")
SMALL = dict(embedding=4, batch_size=2, set_size=5, width=8, head_width=8, evaluation_sets=20)


def trained(folder, aggregation="equilibrium", **fields):
    config = TrainingConfig(steps=2, learning_rate=0.1, ema_decay=0.5, evaluate_every=2)
    train(MedianTask(aggregation, **SMALL, **fields), config, folder, device="cpu")
    return folder


def test_a_network_is_evaluated_with_each_number_of_steps(tmp_path, monkeypatch):
    run = trained(tmp_path / "run", inner_steps=3)
    monkeypatch.setattr(script, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(script, "STEPS", (0, 3))
    monkeypatch.setattr(script, "SETS", SMALL["evaluation_sets"])
    script.main([str(run)])
    found = json.loads((tmp_path / "records" / "run.json").read_text())
    none, own = found["entries"]
    assert (none["inner_steps"], own["inner_steps"]) == (0, 3)
    assert own["metrics"] == evaluate(run, "last", device="cpu")
    assert none["metrics"]["mse"] != own["metrics"]["mse"]
    assert found["config"]["fields"]["inner_steps"] == 3
    assert found["evaluation_sets"] == SMALL["evaluation_sets"]
    assert {"versions", "hardware", "date"} < set(found)


def test_other_methods_have_no_inner_steps(tmp_path):
    run = trained(tmp_path / "run", "sum")
    with pytest.raises(ValueError, match="expected equilibrium aggregation's median"):
        script.evaluated(run, (1,), 10)


def test_without_a_run_it_says_what_is_expected():
    with pytest.raises(SystemExit, match=r"median_steps\.py RUN"):
        script.main([])
