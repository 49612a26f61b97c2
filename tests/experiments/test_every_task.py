"""What holds of every task whose data is drawn."""

import dataclasses
import importlib
import json

import pytest
import torch
from small_tasks import MEDIAN, OMNIGLOT

from equipool.experiments.median import held_out_sets
from equipool.training import Shard
from equipool.training.config import task_from_config

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.usefixtures("tiny_data"),
    pytest.mark.parametrize("task", [MEDIAN, OMNIGLOT], ids=lambda task: task.name),
]


def test_drawing_leaves_torchs_own_stream_alone(task):
    network = task.network()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    task.batches(0, 3, CPU, Shard())
    held_out_sets.cache_clear()
    task.evaluate(network, CPU)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shards_join_to_the_whole(task, world):
    whole = task.batches(5, 40, CPU, Shard())
    shards = [task.batches(5, 40, CPU, Shard(rank, world)) for rank in range(world)]
    for key, value in whole.items():
        assert torch.equal(torch.cat([shard[key] for shard in shards], dim=1), value)


def test_a_chunk_belongs_to_the_seed_and_its_first_step(task):
    found = task.batches(40, 20, CPU, Shard())
    torch.rand(3)
    again = task.batches(40, 20, CPU, Shard())
    assert all(torch.equal(found[key], again[key]) for key in found)
    for other in (task.batches(60, 20, CPU, Shard()),
                  dataclasses.replace(task, seed=1).batches(40, 20, CPU, Shard())):  # fmt: skip
        assert not any(torch.equal(found[key], other[key]) for key in found)


def test_a_batch_that_cannot_be_shared_out_is_refused(task):
    with pytest.raises(ValueError, match="6 rows do not divide into 4"):
        task.batches(0, 2, CPU, Shard(0, 4))


def test_evaluation_depends_neither_on_the_seed_nor_on_its_parts(task, monkeypatch):
    network, other = task.network(), dataclasses.replace(task, seed=9, batch_size=2)
    before = task.evaluate(network, CPU)
    held_out_sets.cache_clear()
    assert other.evaluate(network, CPU) == before
    module = importlib.import_module(type(task).__module__)
    monkeypatch.setattr(module, "SETS_AT_ONCE", 70)
    assert task.evaluate(network, CPU) == pytest.approx(before, rel=1e-5)


def test_fields_survive_json(task):
    quick = type(task).quick("attention", seed=3)
    saved = json.loads(json.dumps(dataclasses.asdict(quick)))
    assert task_from_config({"task": task.name, "fields": saved}) == quick


def test_scaled_sum_divides_by_the_size_of_the_sets(task):
    network = dataclasses.replace(task, aggregation="scaled-sum").network()
    assert network.aggregation.scale == pytest.approx(1 / task.set_size)
