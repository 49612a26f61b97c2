"""Tasks whose data is drawn, on a GPU: no waiting, the same sets."""

import dataclasses

import pytest
import torch
from small_tasks import MEDIAN, OMNIGLOT

from equipool.baselines import AGGREGATIONS
from equipool.experiments.median import held_out_sets
from equipool.training import Shard

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("tiny_data"),
]

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("task", [MEDIAN, OMNIGLOT], ids=lambda task: task.name)
@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_neither_a_loss_nor_drawing_batches_waits_for_the_device(task, name):
    task = dataclasses.replace(task, aggregation=name)
    network = task.network().to(CUDA)
    batch = {key: value[0] for key, value in task.batches(0, 1, CUDA, Shard()).items()}
    task.loss(network, batch).value.backward()  # what is built once
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.loss(network, batch).value.backward()
        task.batches(7, 60, CUDA, Shard())
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_held_out_sets_are_those_of_the_cpu():
    there, here = (held_out_sets(1000, 32, device) for device in (CUDA, CPU))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))
