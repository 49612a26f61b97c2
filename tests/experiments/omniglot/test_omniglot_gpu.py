"""Counting characters on a GPU: the same outputs, no waiting for the device, captured steps."""

import copy
import dataclasses

import pytest
import torch

from cases import assert_near
from equipool.baselines import AGGREGATIONS
from equipool.experiments.omniglot.task import OmniglotTask
from tasks_on_gpu import CUDA, assert_captured_trains_as_eager, assert_nothing_waits

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tiny_data")]

CPU = torch.device("cpu")
SMALL = dataclasses.replace(
    OmniglotTask.quick(), validation_characters=10, evaluation_sets=100, batch_size=8
)


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
