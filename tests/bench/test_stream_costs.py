"""The benchmark of streams: its figures are those of the streams, and a missed goal fails."""

import json

import pytest
import streaming
import torch
from typer.testing import CliRunner


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(streaming, "CASES", ((torch.float64, 1e-3),))
    monkeypatch.setattr(streaming, "LAYERS", {"convex": streaming.convex})


def test_a_small_run_is_recorded(small, tmp_path):
    out = tmp_path / "record.json"
    words = ["--elements", "300", "--edits", "2", "--many-edits", "5", "--many-sets", "12"]
    done = CliRunner().invoke(streaming.app, [*words, "--out", str(out)])
    assert done.exit_code in (0, 1), done.output
    content = json.loads(out.read_text())
    assert (done.exit_code == 1) == bool(streaming.missed(content))
    (row,) = content["replacements"]
    assert row["converged"]
    assert row["warm_steps"]["median"] < row["scratch_steps"]["median"]
    assert 0 < content["drifts"][0]["largest_over_bound"] <= 1
    assert [row["sets"] for row in content["many_sets"]] == [10, 12]


def test_training_gives_a_layer(monkeypatch):
    monkeypatch.setattr(streaming, "TRAINING_STEPS", 1)
    streaming.trained_weights.cache_clear()
    with torch.random.fork_rng():
        layer = streaming.make("trained", torch.float32, 1e-3)
    assert layer.steps.tolerance == 1e-3
    assert not layer.training


@pytest.mark.parametrize(("ratio", "over"), [(0.21, 0.5), (0.19, 1.1)])
def test_missed_goals_are_found(ratio, over):
    slow = {"tolerance": 1e-3, "ratio": {"median": ratio}}
    far = {"largest_over_bound": over}
    assert len(streaming.missed({"replacements": [slow], "drifts": [far]})) == 1
