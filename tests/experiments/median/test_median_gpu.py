"""The median task on a GPU: the same outputs, no waiting for the device, captured steps."""

import copy
import dataclasses

import pytest
import torch

from cases import assert_near
from equipool.baselines import AGGREGATIONS, aggregation_from_name
from equipool.experiments.median import MedianTask, held_out_sets
from equipool.training import Shard
from tasks_on_gpu import CUDA, assert_captured_trains_as_eager, assert_nothing_waits

pytestmark = pytest.mark.gpu

SMALL = MedianTask.quick()


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_rivals_agree_with_the_cpu(name):
    torch.manual_seed(0)
    layer = aggregation_from_name(name, 8, 8)
    x, mask = torch.randn(5, 7, 8), torch.rand(5, 7) < 0.6
    mask[2] = False
    there = copy.deepcopy(layer).to(CUDA)
    y = there(x.to(CUDA).requires_grad_(), mask=mask.to(CUDA))
    assert_near(y.cpu(), layer(x, mask=mask), 1e-3)
    y.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in there.parameters())


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_loss_does_not_wait_for_the_device(name):
    assert_nothing_waits(dataclasses.replace(SMALL, aggregation=name))


@pytest.mark.parametrize("name", ["sum", "scaled-sum", "attention", "equilibrium"])
def test_a_captured_step_trains_as_an_eager_one(name):
    task = dataclasses.replace(SMALL, aggregation=name)
    assert_captured_trains_as_eager(task, learning_rate=1e-6)


def test_steps_on_the_device_are_a_function_of_seed_and_step():
    many = SMALL.batches(40, 30, CUDA, Shard())
    one = SMALL.batches(55, 1, CUDA, Shard())
    assert torch.equal(many["x"][15:16], one["x"])
    assert torch.equal(many["median"][15:16], one["median"])


def test_held_out_sets_are_those_of_the_cpu():
    there = held_out_sets(1000, 32, CUDA)
    here = held_out_sets(1000, 32, torch.device("cpu"))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))
