import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from equipool import EquilibriumAggregation
from equipool.baselines import AGGREGATIONS
from equipool.experiments.median import (
    DISTRIBUTIONS,
    STEPS_AT_ONCE,
    MedianTask,
    held_out_sets,
)
from equipool.training import Shard

CPU = torch.device("cpu")
SMALL = MedianTask(
    aggregation="mean", embedding=4, batch_size=6, set_size=10, width=8, evaluation_sets=3000
)


def batches(task, first_step, num_steps, shard=None):
    return task.batches(first_step, num_steps, CPU, shard or Shard())


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


# The first numbers of the held-out sets of 10. A change would make errors in older records the
# measurement of something else.
PINNED = [0.69894826, -0.09469461, 0.26113388]


class Constant(nn.Module):
    """Answers 0.3."""

    def forward(self, x):
        return torch.full(x.shape[:1], 0.3)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("embedding", 0, "a whole number"),
        ("inner_steps", -1, "a whole number"),
        ("aggregation", "summ", "one of"),
    ],
)
def test_values_that_cannot_be_are_refused(name, value, expected):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected {expected}"):
        MedianTask(**{name: value})


def test_labels_are_numpys_medians():
    batch = batches(SMALL, 0, 40)
    assert batch["x"].shape == (40, 6, 10)
    expected = np.median(batch["x"].numpy(), axis=-1)
    np.testing.assert_allclose(batch["median"].numpy(), expected, rtol=1e-6)


def test_the_three_distributions_are_equally_likely():
    task = dataclasses.replace(SMALL, batch_size=1000, set_size=100)
    x = batches(task, 0, 3)["x"].flatten(0, 1)
    # only the normal goes below 0; among the others, only gamma sets have a mean below 0.3
    normal = (x < 0).any(-1)
    gamma = ~normal & (x.mean(-1) < 0.3)
    assert normal.float().mean().item() == pytest.approx(1 / 3, abs=0.05)
    assert gamma.float().mean().item() == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("first_step", [0, 1, STEPS_AT_ONCE - 1, STEPS_AT_ONCE, 1_000_003])
@pytest.mark.parametrize("num_steps", [1, STEPS_AT_ONCE, 2 * STEPS_AT_ONCE + 3])
def test_a_steps_sets_belong_to_the_seed_and_the_step(first_step, num_steps):
    """Whatever is asked for with it, and whatever was drawn before."""
    many = batches(SMALL, first_step, num_steps)
    torch.rand(3)
    for i in {0, num_steps // 2, num_steps - 1}:
        one = batches(SMALL, first_step + i, 1)
        assert_equal(one, {key: value[i : i + 1] for key, value in many.items()})


def test_no_step_and_no_seed_repeats_another():
    some = [batches(dataclasses.replace(SMALL, seed=seed), 0, 100)["x"] for seed in (0, 1)]
    numbers = torch.cat(some).flatten()
    assert torch.unique(numbers).numel() > 0.999 * numbers.numel()


def test_loss_is_the_squared_error():
    batch = {key: value[0] for key, value in batches(SMALL, 0, 1).items()}
    expected = (0.3 - batch["median"]).square().mean()
    torch.testing.assert_close(SMALL.loss(Constant(), batch).value, expected)


def test_evaluation_by_hand():
    x, _, kind = held_out_sets(3000, 10, CPU)
    metrics = SMALL.evaluate(Constant(), CPU)
    errors = 0.3 - np.median(x.double().numpy(), axis=-1)
    assert metrics["mse"] == pytest.approx((errors**2).mean(), rel=1e-5)
    assert metrics["rmse"] == pytest.approx((errors**2).mean() ** 0.5, rel=1e-5)
    assert metrics["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    for position, name in enumerate(DISTRIBUTIONS):
        own = errors[kind.numpy() == position]
        assert len(own) > 900
        assert metrics[f"mse_{name}"] == pytest.approx((own**2).mean(), rel=1e-5)


def test_held_out_sets_are_always_the_same_and_no_training_sets():
    held_out_sets.cache_clear()
    first = held_out_sets(3000, 10, CPU)
    held_out_sets.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(held_out_sets(3000, 10, CPU), first, strict=True))
    assert first[0][0, :3].tolist() == pytest.approx(PINNED, abs=1e-6)
    training = torch.cat([batches(dataclasses.replace(SMALL, seed=s), 0, 50)["x"] for s in (0, 1)])
    shared = np.intersect1d(first[0].numpy(), training.numpy())
    assert shared.size < 0.001 * training.numel()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_trains(aggregation):
    task = dataclasses.replace(SMALL, aggregation=aggregation)
    torch.manual_seed(0)
    network = task.network()
    batch = {key: value[0] for key, value in batches(task, 0, 1).items()}
    task.loss(network, batch).value.backward()
    learned = [p for p in network.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned)
    found = network(batch["x"])
    assert found.shape == (6,)
    shuffled = batch["x"][:, torch.randperm(10)]
    torch.testing.assert_close(network(shuffled), found, rtol=1e-3, atol=1e-4)


def test_the_papers_values():
    own, rival = (MedianTask.paper(name, embedding=16).network() for name in ("equilibrium", "sum"))
    assert [m.out_features for m in rival.embedding.linears] == [256, 256, 16]
    for network in (own, rival):
        assert [(m.in_features, m.out_features) for m in network.head[::2]] == [(16, 128), (128, 1)]
    layer = own.aggregation
    assert isinstance(layer, EquilibriumAggregation)
    assert isinstance(own.embedding, nn.Identity)
    assert layer.potential.hidden == (256, 256, 1)
    assert (layer.steps.max_steps, layer.out_channels) == (5, 16)
    assert not list(layer.start.parameters())
    task = MedianTask.paper("sum", embedding=8, seed=2)
    assert (task.aggregation, task.embedding, task.seed) == ("sum", 8, 2)
    assert (task.set_size, task.evaluation_sets) == (100, 80_000)
