"""Tasks whose data is drawn, on a GPU: the same outputs, no waiting, captured steps."""

import dataclasses

import pytest
import torch

from equipool.baselines import AGGREGATIONS
from equipool.experiments.median import MedianTask, held_out_sets
from equipool.experiments.omniglot.task import OmniglotTask
from tasks_on_gpu import CUDA, assert_captured_trains_as_eager, assert_nothing_waits

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tiny_data")]

CPU = torch.device("cpu")
MEDIAN = MedianTask.quick()
OMNIGLOT = dataclasses.replace(
    OmniglotTask.quick(), validation_characters=10, evaluation_sets=100, batch_size=8
)
each_task = pytest.mark.parametrize("task", [MEDIAN, OMNIGLOT], ids=lambda task: task.name)


@each_task
@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_loss_does_not_wait_for_the_device(task, name):
    assert_nothing_waits(dataclasses.replace(task, aggregation=name))


@each_task
@pytest.mark.parametrize("name", ["sum", "scaled-sum", "attention", "equilibrium"])
def test_a_captured_step_trains_as_an_eager_one(task, name):
    rate = 1e-6 if task is MEDIAN else 1e-4
    assert_captured_trains_as_eager(dataclasses.replace(task, aggregation=name), rate)


def test_held_out_sets_are_those_of_the_cpu():
    there, here = (held_out_sets(1000, 32, device) for device in (CUDA, CPU))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))
