"""Counting characters on a GPU: the same outputs, no waiting for the device, captured steps."""

import copy
import dataclasses

import pytest
import torch

import tiny_omniglot as tiny
from cases import assert_near
from equipool import capture_step
from equipool.baselines import AGGREGATIONS
from equipool.experiments.registry import OmniglotTask
from equipool.training import Shard, TrainingConfig, evaluate, train

pytestmark = pytest.mark.gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SMALL = dataclasses.replace(
    OmniglotTask.quick(), validation_characters=10, evaluation_sets=100, batch_size=8
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("omniglot")
    tiny.write_archive(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOOL_DATA", str(place))
        yield place


def first_batch(task, device=CUDA):
    return {key: value[0] for key, value in task.batches(0, 1, device, Shard()).items()}


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
    task = dataclasses.replace(SMALL, aggregation=name)
    network = task.network().to(CUDA)
    batch = first_batch(task)
    task.loss(network, batch).value.backward()  # what is built once
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.loss(network, batch).value.backward()
        task.batches(7, 60, CUDA, Shard())
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["sum", "attention", "set-transformer", "equilibrium"])
def test_a_captured_step_trains_as_an_eager_one(name):
    task = dataclasses.replace(SMALL, aggregation=name)
    torch.manual_seed(0)
    start = task.network()
    weights = []
    for captured in (False, True):
        network = copy.deepcopy(start).to(CUDA)
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
        batch = first_batch(task)

        def step(network=network, optimizer=optimizer, batch=batch):
            optimizer.zero_grad(set_to_none=True)
            task.loss(network, batch).value.backward()
            optimizer.step()

        run = capture_step(step, warmup=3) if captured else step
        for _ in range(2 if captured else 5):
            run()
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    moved = weights[0] - torch.cat([p.flatten() for p in start.to(CUDA).parameters()])
    assert moved.norm() > 0
    assert_near(weights[1], weights[0], 1e-4)


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
