"""Which steps are skipped, against the same rule in plain numbers; and their numbers."""

import math

import pytest
import torch

from equipool.training import count_spikes
from equipool.training.optimizer import Guard, History
from equipool.training.record import RunState

CPU = torch.device("cpu")


def judge(guard, norms):
    return [guard.judge(torch.tensor(norm)).item() for norm in norms]


def naive(factor, norms):
    """The rule over the whole past, again for each step: skip what is not finite, or more than
    factor times the average of the finite norms before it where there are a hundred."""
    past, skipped = [], []  # finite norms, cut where they were too long
    for norm in norms:
        average = mean(past)
        trusted = len(past) >= 100 and average > 0
        limit = factor * average if trusted else math.inf
        skipped.append(float(not math.isfinite(norm) or norm > limit))
        if math.isfinite(norm):
            past.append(min(norm, limit))
    return mean(past), skipped


def mean(past):
    """The plain mean of the first hundred, which each later one moves by a hundredth."""
    if not past:
        return 0.0
    first, later = past[:100], past[100:]
    kept = 0.99 ** len(later)
    tail = sum(0.01 * 0.99**age * norm for age, norm in enumerate(reversed(later)))
    return kept * sum(first) / len(first) + tail


def drawn_norms():
    norms = torch.randn(400, generator=torch.Generator().manual_seed(0)).exp().tolist()
    for step, norm in ((3, math.nan), (150, math.inf), (200, 1e4), (201, math.nan), (300, 300.0)):
        norms[step] = norm
    return norms


@pytest.mark.parametrize(
    "norms",
    [
        drawn_norms(),
        *([start] * 150 + [1.0] * 300 + [1e4, 1.0] for start in (math.nan, math.inf, 0.0)),
        [1.0] * 60 + [math.nan] * 60 + [1e3] + [1.0] * 39 + [1e3],
    ],
    ids=["drawn", "after NaN", "after inf", "after zeros", "NaN in the first hundred"],
)
def test_it_is_the_rule(norms):
    guard = Guard(10.0, 1.0, CPU)
    average, expected = naive(10.0, norms)
    assert judge(guard, norms) == expected
    assert guard.average.item() == pytest.approx(average, rel=1e-4)
    assert 0 < sum(expected) < len(norms)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (0, 5), (5, 7), (6, 10)])
def test_the_history_has_the_rows_of_the_latest_steps(first, last):
    history = History(["loss", "other"], 5, CPU)
    for step in range(last):
        value = torch.tensor(float(step), requires_grad=True)
        history.write([value, 2 * value])
    columns = history.read(first, last)
    assert columns["loss"].tolist() == list(range(first, last))
    assert columns["other"].tolist() == [2 * step for step in range(first, last)]
    assert not history.rows.requires_grad


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


@pytest.mark.parametrize("steps", [0, 99, 101, 2300])
def test_spikes_are_those_of_the_definition(steps):
    losses = random_losses(steps)
    assert count_spikes(losses) == naive_spikes(losses.tolist())


@pytest.mark.parametrize("log_every", [7, 400, 2000])
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
