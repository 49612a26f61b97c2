"""The guard, against the same rule in plain numbers."""

import math

import pytest
import torch

from equipool.training.guard import Guard

CPU = torch.device("cpu")


def judge(guard, norms):
    return [
        guard.judge(torch.tensor(norm), torch.tensor(guard.numbers(step))).item()
        for step, norm in enumerate(norms)
    ]


def naive(factor, norms):
    """The rule: skip what is not finite or more than factor times the average of those before."""
    average, skipped = 0.0, []
    for step, norm in enumerate(norms):
        limit = factor * average if step >= 100 else math.inf
        bad = not math.isfinite(norm) or norm > limit
        skipped.append(float(bad))
        if math.isfinite(norm):
            average += max(0.01, 1 / (step + 1)) * (min(norm, limit) - average)
    return average, skipped


def test_it_is_the_rule():
    generator = torch.Generator().manual_seed(0)
    norms = torch.exp(torch.randn(400, generator=generator)).tolist()
    for step, norm in ((3, math.nan), (150, math.inf), (200, 1e4), (201, math.nan), (300, 60.0)):
        norms[step] = norm
    guard = Guard(10.0, CPU)
    found = judge(guard, norms)
    average, expected = naive(10.0, norms)
    assert found == expected
    assert guard.average.item() == pytest.approx(average, rel=1e-4)
    assert 5 <= sum(found) < 20


def test_without_a_factor_only_what_is_not_finite_is_skipped():
    norms = [1.0] * 200 + [1e30, math.inf, math.nan, 1.0]
    assert judge(Guard(None, CPU), norms)[200:] == [0, 1, 1, 0]


def test_nothing_is_too_long_before_the_average_has_settled():
    assert judge(Guard(2.0, CPU), [1.0, 100.0, 1.0, 1e6]) == [0, 0, 0, 0]


def test_it_follows_gradients_that_have_grown_for_good():
    found = judge(Guard(10.0, CPU), [1.0] * 150 + [1000.0] * 150)
    assert found[150] == 1
    assert found[-50:] == [0] * 50


def test_its_state_goes_on_where_it_was():
    norms = [1.0] * 120 + [5.0, 50.0]
    whole, first, second = Guard(10.0, CPU), Guard(10.0, CPU), Guard(10.0, CPU)
    judge(whole, norms)
    judge(first, norms[:110])
    second.average.copy_(first.tensors()["average"])
    for step in range(110, len(norms)):
        second.judge(torch.tensor(norms[step]), torch.tensor(second.numbers(step)))
    assert torch.equal(second.average, whole.average)
