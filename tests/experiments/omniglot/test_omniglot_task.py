import dataclasses
from itertools import pairwise

import pytest
import torch
from small_tasks import OMNIGLOT as SMALL
from torch import nn
from torch.nn import functional

import tiny_omniglot as tiny
from equipool.experiments.omniglot.task import OmniglotTask, confusion
from equipool.training import Shard

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def data(tiny_data):
    """The tiny data set, at the task's size."""
    return SMALL.data(CPU)


def batches(task, first_step, num_steps, shard=None):
    return task.batches(first_step, num_steps, CPU, shard or Shard())


def distinct(images):
    """How many different characters are in each set of images, looked up one by one."""
    return torch.tensor([len({image // tiny.DRAWINGS for image in row}) for row in images.tolist()])


class Constant(nn.Module):
    """Says 2, whatever it sees."""

    def forward(self, images):
        return torch.tensor([0.0, 1.0, 0.5]).expand(len(images), 3)


def test_labels_are_right_and_each_part_has_characters_of_its_own(data):
    batch = {name: values.flatten(0, 1) for name, values in batches(SMALL, 0, 50).items()}
    drawn = [(data.pools["train"], batch["images"], batch["num_classes"])]
    drawn += [(pool, *SMALL.held_out(part, CPU)) for part, pool in data.pools.items()]
    for pool, images, numbers in drawn:
        assert torch.equal(distinct(images), numbers)
        characters = set((images // tiny.DRAWINGS).flatten().tolist())
        assert characters == set(range(pool.first, pool.first + pool.characters))
    ranges = sorted((pool.first, pool.first + pool.characters) for pool in data.pools.values())
    assert all(end <= first for (_, end), (first, _) in pairwise(ranges))
    test = data.pools["test"]
    names = data.names[test.first : test.first + test.characters]
    assert sorted(names) == sorted(tiny.names("evaluation"))


def test_loss_is_the_cross_entropy():
    batch = {key: value[0] for key, value in batches(SMALL, 0, 1).items()}
    logits = torch.tensor([0.0, 1.0, 0.5]).double()
    chosen = torch.stack([logits[number - 1] for number in batch["num_classes"]])
    loss = SMALL.loss(Constant(), batch)
    expected = (logits.exp().sum().log() - chosen).mean()
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-6)
    right = (batch["num_classes"] == 2).double().mean()
    assert loss.metrics["accuracy"].item() == pytest.approx(right.item())


def test_evaluation_of_a_constant():
    metrics = SMALL.evaluate(Constant(), CPU)
    for part in ("train", "validation", "test"):
        numbers = SMALL.held_out(part, CPU).num_classes
        share = (numbers == 2).double().mean().item()
        assert 0.2 < share < 0.5
        assert metrics[f"{part}_accuracy"] == pytest.approx(share)
        logits = torch.tensor([0.0, 1.0, 0.5]).expand(200, 3)
        entropy = functional.cross_entropy(logits, numbers - 1).item()
        assert metrics[f"{part}_cross_entropy"] == pytest.approx(entropy, rel=1e-5)
    by_count = [metrics[f"test_accuracy_{number}"] for number in (1, 2, 3)]
    assert by_count == [0, 1, 0]
    assert len(metrics) == 9
    assert set(OmniglotTask.reported) | {OmniglotTask.monitor} <= set(metrics)


def test_confusion_is_written(tmp_path):
    answers = torch.tensor([0, 0, 0, 1, 1, 3])
    logits = functional.one_hot(torch.tensor([0, 1, 1, 1, 3, 3]), 4).double()
    expected = [[1, 2, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert confusion(logits, answers).tolist() == expected
    SMALL.write_results(Constant(), CPU, tmp_path / "results")
    numbers = torch.bincount(SMALL.held_out("test", CPU).num_classes, minlength=4).tolist()
    assert (tmp_path / "results" / "confusion-test.csv").read_text().splitlines() == [
        "true,1,2,3", *(f"{i},0,{numbers[i]},0" for i in (1, 2, 3)),
    ]  # fmt: skip


def test_a_run_remembers_its_images(tmp_path, monkeypatch):
    """The same characters, one of them drawn otherwise, are other data."""
    known = SMALL.facts()
    assert known["characters"] == {"train": 24, "validation": 6, "test": 12}
    assert known == dataclasses.replace(SMALL, seed=5, aggregation="sum").facts()
    images = tiny.arrays()["images"]
    images[-1, -1] = 1 - images[-1, -1]
    tiny.write_archive(tmp_path, images=images)
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
    assert SMALL.facts()["fingerprint"] != known["fingerprint"]


def test_the_papers_values():
    task = OmniglotTask.paper()
    assert (task.batch_size, task.set_size, task.max_classes, task.image_size) == (8, 16, 10, 32)
    layer = task.network().aggregation
    assert layer.potential.hidden == (512, 512, 32)
    assert (layer.in_channels, layer.out_channels, layer.steps.max_steps) == (256, 256, 10)
