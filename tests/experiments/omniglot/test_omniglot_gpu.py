"""Counting characters on a GPU: the same outputs, no waiting for the device, captured steps."""

import copy
import dataclasses

import pytest
import torch

from cases import assert_near
from equipool.baselines import AGGREGATIONS
from equipool.experiments.omniglot import OmniglotTask
from equipool.training import TrainingConfig, evaluate, train
from tasks_on_gpu import CUDA, assert_captured_trains_as_eager, assert_nothing_waits

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tiny_data")]

CPU = torch.device("cpu")
SMALL = dataclasses.replace(
    OmniglotTask.quick(), validation_characters=10, evaluation_sets=100, batch_size=8
)


def test_sets_to_evaluate_on_are_those_of_the_cpu():
    for part in ("train", "validation", "test"):
        there, here = SMALL.held_out(part, CUDA), SMALL.held_out(part, CPU)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))
    assert torch.equal(SMALL.data(CUDA).pixels.cpu(), SMALL.data(CPU).pixels)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_networks_agree_with_the_cpu(name):
    task = dataclasses.replace(SMALL, aggregation=name)
    torch.manual_seed(0)
    network = task.network()
    images = task.data(CPU).pixels[task.held_out("test", CPU).images[:20]]
    there = copy.deepcopy(network).to(CUDA)(images.to(CUDA))
    assert_near(there.cpu(), network(images), 2e-3)


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_loss_does_not_wait_for_the_device(name):
    assert_nothing_waits(dataclasses.replace(SMALL, aggregation=name))


@pytest.mark.parametrize("name", ["sum", "attention", "set-transformer", "equilibrium"])
def test_a_captured_step_trains_as_an_eager_one(name):
    task = dataclasses.replace(SMALL, aggregation=name)
    assert_captured_trains_as_eager(task, learning_rate=1e-4)


@pytest.mark.parametrize("precision", ["32-true", "tf32", "bf16-mixed"])
def test_it_learns_captured_in_every_precision(tmp_path, precision):
    task = dataclasses.replace(SMALL, max_classes=2, batch_size=64)
    config = TrainingConfig(
        steps=300, learning_rate=3e-3, precision=precision, capture=True, evaluate_every=300
    )
    record = train(task, config, tmp_path / "run", device="cuda")
    assert record.metrics["train_accuracy"] > 0.7
    assert record.skipped == 0
    again = evaluate(tmp_path / "run", "last", device="cuda")
    assert again["train_accuracy"] == pytest.approx(record.metrics["train_accuracy"], abs=0.03)
