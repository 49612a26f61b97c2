"""Rows on the device, spikes and evaluations on the host."""

import math

import pytest
import torch

from equipool.training import count_spikes
from equipool.training.folder import RunState
from equipool.training.optimizer import History


@pytest.mark.parametrize(("first", "last"), [(0, 3), (0, 5), (5, 7), (7, 10), (6, 10)])
def test_the_rows_of_these_steps_are_read(first, last):
    history = History(["loss", "other"], 5, torch.device("cpu"))
    for step in range(last):
        value = torch.tensor(float(step), requires_grad=True)
        history.write([value, 2 * value])
    columns = history.read(first, last)
    assert columns["loss"].tolist() == list(range(first, last))
    assert columns["other"].tolist() == [2 * step for step in range(first, last)]
    assert not history.rows.requires_grad
    assert history.counter.tolist() == [last]


def naive_spikes(losses):
    """The definition, loss by loss."""
    known, spikes = [], 0
    for loss in losses:
        if math.isfinite(loss):
            if len(known) >= 100:
                window = sorted(known[-1000:])
                spikes += loss > 10 * window[(len(window) - 1) // 2]
            known.append(loss)
    return spikes


def random_losses(steps):
    falling = torch.linspace(5, 1, steps, dtype=torch.float64)
    losses = (torch.randn(steps, dtype=torch.float64).mul(1.5) + falling).exp()
    losses[torch.rand(steps) < 0.05] = torch.nan
    losses[torch.rand(steps) < 0.05] = torch.inf
    return losses


@pytest.mark.parametrize("steps", [0, 99, 101, 1200, 3500])
def test_spikes_are_those_of_the_definition(steps):
    losses = random_losses(steps)
    expected = naive_spikes(losses.tolist())
    assert count_spikes(losses) == expected
    assert count_spikes(torch.stack([losses, torch.ones(steps)], 1)).tolist() == [expected, 0]


def test_only_finite_losses_after_the_first_hundred_are_spikes():
    losses = torch.ones(300)
    losses[99] = losses[100] = losses[150] = 10.1
    losses[160], losses[170] = torch.nan, torch.inf
    assert count_spikes(losses) == 2


@pytest.mark.parametrize("log_every", [1, 7, 400, 2000])
def test_a_run_counts_the_same_however_often_it_logs(log_every):
    losses = random_losses(1500)
    skipped = (~losses.isfinite()).float()
    state, found = RunState(), []
    for first in range(0, 1500, log_every):
        part = slice(first, first + log_every)
        state.step = min(first + log_every, 1500)
        found += state.add_steps({"loss": losses[part], "skipped": skipped[part]})
    assert state.spikes == count_spikes(losses)
    assert found == skipped.nonzero().flatten().tolist()
    assert state.skipped == len(found)
    assert len(state.recent_losses) == 1000
    assert state.recent_losses.isfinite().all()
