"""The guard, against the same rule in plain numbers."""

import math

import pytest
import torch

from equipool.training.guard import Guard

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


@pytest.mark.parametrize("start", [math.nan, math.inf, 0.0])
def test_it_does_not_lock_up_after_a_start_without_gradients(start):
    norms = [start] * 150 + [1.0] * 300 + [1e4, 1.0]
    guard = Guard(10.0, CPU)
    found = judge(guard, norms)
    assert found == naive(10.0, norms)[1]
    assert found[150] == 0
    assert found[250:450] == [0] * 200
    assert found[450:] == [1, 0]


def test_norms_that_are_not_finite_are_no_part_of_the_hundred():
    norms = [1.0] * 60 + [math.nan] * 60 + [1e3] + [1.0] * 39 + [1e3]
    found = judge(Guard(10.0, CPU), norms)
    assert found[120] == 0
    assert found[160] == 1
    assert found == naive(10.0, norms)[1]


def test_an_infinite_norm_is_skipped_however_large_the_average():
    assert judge(Guard(10.0, CPU), [1e38] * 120 + [math.inf])[-1] == 1


def test_its_state_goes_on_where_it_was():
    norms = [1.0] * 90 + [math.nan] * 5 + [2.0] * 15 + [5.0, 50.0]
    whole, first, second = Guard(10.0, CPU), Guard(10.0, CPU), Guard(10.0, CPU)
    judge(whole, norms)
    judge(first, norms[:97])
    for name, value in second.tensors().items():
        value.copy_(first.tensors()[name])
    judge(second, norms[97:])
    for name, value in second.tensors().items():
        assert torch.equal(value, whole.tensors()[name]), name
