"""The script that looks into trained networks of the median."""

import json

import pytest
import torch
from figure_scripts import load_script
from torch import nn

from equipool import EquilibriumAggregation, LearnedStart, Nesterov, NoRegularizer
from equipool.experiments.median.network import MedianNetwork
from equipool.experiments.registry import MedianTask
from equipool.training import TrainingConfig, evaluate, train

script = load_script("median_networks")
SMALL = {
    "embedding": 4, "batch_size": 2, "set_size": 5, "width": 8, "head_width": 8,
    "evaluation_sets": 20,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fewer(monkeypatch, tmp_path):
    less = {"SETS": 20, "SEARCHED": 6, "AT_ONCE": 4, "STEPS": 3, "BATCHES": 500}
    for name, value in (less | {"RECORDS": tmp_path / "records"}).items():
        monkeypatch.setattr(script, name, value)


def trained(folder, aggregation, **fields):
    config = TrainingConfig(steps=2, learning_rate=0.1, ema_decay=0.5, evaluate_every=2)
    train(MedianTask(aggregation, **SMALL, **fields), config, folder, device="cpu")
    return folder


def test_what_is_written_of_networks(tmp_path):
    pooled = trained(tmp_path / "pooled", "sum")
    searched = trained(tmp_path / "searched", "equilibrium", inner_steps=2)
    script.main([str(pooled), str(searched)])
    for run in (pooled, searched):
        found = json.loads((tmp_path / "records" / f"{run.name}.json").read_text())
        assert found["mse"] == pytest.approx(evaluate(run, "last", device="cpu")["mse"], rel=1e-4)
        assert 0 <= found["spikes"] <= 1
        assert {"config", "versions", "hardware", "date"} < set(found)
        assert ("search" in found) is (run is searched)
    assert [entry["steps"] for entry in found["search"]] == [0, 1, 2, 3]


def test_the_steps_of_a_search():
    """One element at 0, pulled to by half the squared distance, in steps no longer than 0.9."""

    class Bowl(nn.Module):
        def forward(self, x, y):
            return (y - x).square().sum(-1) / 2

    layer = EquilibriumAggregation(
        1, 1, potential=Bowl(), solver=Nesterov(1.0, 0.0, max_step=0.9),
        start=LearnedStart(1, 2.0), regularizer=NoRegularizer(), scaling="sum", num_steps=1,
    )  # fmt: skip
    network = MedianNetwork(nn.Identity(), layer, 1)
    network.head = nn.Identity()
    found = script.searched(network, torch.zeros(2, 1), torch.zeros(2))
    expected = {
        "mse": [4.0, 1.21, 0.04, 0.0],
        "gradient": [2.0, 1.1, 0.2, 0.0],
        "length": [0.0, 0.9, 0.9, 0.2],
        "at_limit": [0.0, 1.0, 1.0, 0.0],
    }
    for name, values in expected.items():
        both = torch.tensor(values)[:, None].expand(-1, 2)
        torch.testing.assert_close(found[name], both, rtol=1e-5, atol=1e-6)
    assert layer.num_steps == 1  # as it was


def test_spikes_of_batches():
    rare = torch.ones(1000)
    rare[:20] = 1000.0  # in a batch of one, a fiftieth of them
    assert 0 < script.spikes(rare, 1) < 0.2
    assert script.spikes(torch.ones(1000), 4) == 0
