"""Bags on a GPU: the same outputs, no waiting for the device, captured steps."""

import dataclasses

import pytest
import torch

import tiny_bags as tiny
from equipool.experiments.bags import BagsTask
from equipool.training import TrainingConfig, train
from tasks_on_gpu import CUDA, assert_captured_trains_as_eager, assert_nothing_waits

pytestmark = pytest.mark.gpu

SMALL = BagsTask(dataset="musk1", width=16, embedding=8, batch_size=8, potential=(16, 16, 4))
POOLINGS = ["equilibrium", "mean", "gated-attention", "pna"]


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch):
    tiny.write_table(tmp_path)
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_loss_does_not_wait_for_the_device(name):
    assert_nothing_waits(dataclasses.replace(SMALL, aggregation=name))


@pytest.mark.parametrize("name", POOLINGS)
def test_a_captured_step_trains_as_an_eager_one(name):
    assert_captured_trains_as_eager(dataclasses.replace(SMALL, aggregation=name), 1e-3)


def test_evaluations_agree_with_the_cpu():
    torch.manual_seed(0)
    network = SMALL.network().eval()
    here = SMALL.evaluate(network, torch.device("cpu"))
    assert SMALL.evaluate(network.to(CUDA), CUDA) == pytest.approx(here, abs=1e-3)


def test_it_learns_captured(tmp_path):
    config = TrainingConfig(200, 1e-2, capture=True, evaluate_every=200)
    record = train(SMALL, config, tmp_path / "run", device="cuda", progress=False)
    assert record.metrics["test_auc"] > 0.9
