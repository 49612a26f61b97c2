import dataclasses

import numpy as np
import pytest
import torch
from small_tasks import MEDIAN as SMALL
from torch import nn

from equipool.experiments.median import (
    DISTRIBUTIONS,
    STEPS_AT_ONCE,
    MedianTask,
    held_out_sets,
)
from equipool.training import Shard

CPU = torch.device("cpu")


def batches(task, first_step, num_steps):
    return task.batches(first_step, num_steps, CPU, Shard())


# The first numbers of the held-out sets of 10. A change would make errors in older records the
# measurement of something else.
PINNED = [0.69894826, -0.09469461, 0.26113388]


class Constant(nn.Module):
    """Answers 0.3."""

    def forward(self, x):
        return torch.full(x.shape[:1], 0.3)


@pytest.mark.parametrize("first_step", [1, STEPS_AT_ONCE - 1, 1_000_003])
def test_a_steps_sets_belong_to_the_seed_and_the_step(first_step):
    """Whatever is asked for with it, and whatever was drawn before."""
    many = batches(SMALL, first_step, 2 * STEPS_AT_ONCE + 3)
    for i in (0, STEPS_AT_ONCE, 2 * STEPS_AT_ONCE + 2):
        one = batches(SMALL, first_step + i, 1)
        assert all(torch.equal(one[key], many[key][i : i + 1]) for key in many)
    numbers = torch.cat([many["x"], batches(dataclasses.replace(SMALL, seed=1), 0, 100)["x"]])
    assert torch.unique(numbers).numel() > 0.999 * numbers.numel(), "none repeats another"


def test_loss_is_the_squared_error():
    batch = {key: value[0] for key, value in batches(SMALL, 0, 1).items()}
    np.testing.assert_allclose(batch["median"], np.median(batch["x"], axis=-1), rtol=1e-6)
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


def test_the_papers_values():
    task = MedianTask.paper("equilibrium", embedding=16)
    assert (task.set_size, task.evaluation_sets) == (100, 80_000)
    own, rival = (MedianTask.paper(name, embedding=16).network() for name in ("equilibrium", "sum"))
    assert [m.out_features for m in rival.embedding.linears] == [256, 256, 16]
    assert isinstance(own.embedding, nn.Identity)
    layer = own.aggregation
    assert layer.potential.hidden == (256, 256, 1)
    assert (layer.steps.max_steps, layer.out_channels) == (5, 16)
    assert not list(layer.start.parameters())
