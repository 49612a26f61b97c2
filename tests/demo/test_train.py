import itertools

import pytest
import torch

from equipool.demo.models import Sizes, sum_network
from equipool.demo.task import sample_sets
from equipool.demo.train import (
    Recipe,
    Seconds,
    Steps,
    learning_rate_factor,
    mean_squared_error,
    train,
)

SMALL = Sizes(width=8, channels=3, head_width=64)
RECIPE = Recipe(batch_size=8, learning_rate=1e-2)


def run(budget, seed=0, **options):
    torch.manual_seed(seed)
    network = sum_network(SMALL)
    generator = torch.Generator().manual_seed(seed)
    heard = []
    report = options.pop("report", lambda done, history: heard.append((done, history.num_steps)))
    history = train(network, budget, RECIPE, generator, report, **options)
    return network, history, heard


def test_a_budget_of_steps_takes_exactly_those():
    _, history, heard = run(Steps(4))
    assert history.num_steps == 4
    assert heard == [(0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)]


def test_a_budget_of_seconds_ends_with_the_first_step_that_exceeds_it():
    seconds = itertools.count(start=100.0, step=0.4)  # the clock, read once a step
    _, history, heard = run(Seconds(1.0), clock=lambda: next(seconds))
    assert history.seconds == pytest.approx([0.4, 0.8, 1.2])
    assert heard[-1] == (1.0, 3)


def test_training_lowers_the_error_on_sets_not_trained_on():
    x, target = sample_sets(500, torch.Generator().manual_seed(99))
    before, _, _ = run(Steps(1))
    after, _, _ = run(Steps(200))
    assert mean_squared_error(after, x, target, 100) < 0.1 * mean_squared_error(
        before, x, target, 100
    )


def test_a_seed_gives_the_same_history():
    first, again, other = (run(Steps(5), seed)[1].errors for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_the_error_is_that_of_the_batch_before_the_step():
    torch.manual_seed(0)
    network = sum_network(SMALL)
    x, target = sample_sets(RECIPE.batch_size, torch.Generator().manual_seed(0))
    expected = (network(x) - target).square().mean().item()
    assert run(Steps(1))[1].errors == [pytest.approx(expected)]


def test_gradients_are_shortened():
    network, _, _ = run(Steps(2))
    norm = torch.cat([p.grad.flatten() for p in network.parameters()]).norm().item()
    assert norm <= RECIPE.gradient_norm * (1 + 1e-4)


@pytest.mark.parametrize(
    ("progress", "expected"), [(0, 0), (0.05, 0.5), (0.1, 1), (0.55, 0.5), (1, 0)]
)
def test_learning_rate_rises_and_falls(progress, expected):
    assert learning_rate_factor(progress, warm_up=0.1) == pytest.approx(expected)


def test_learning_rate_stays_at_zero_beyond_the_budget():
    assert learning_rate_factor(1.3, warm_up=0.1) == 0


def test_error_on_given_sets_does_not_depend_on_the_batches():
    x, target = sample_sets(10, torch.Generator().manual_seed(5))
    network = sum_network(SMALL)
    expected = (network(x) - target).square().mean().item()
    assert mean_squared_error(network, x, target, 3) == pytest.approx(expected, rel=1e-5)


def test_the_schedule_reaches_the_optimizer():
    torch.manual_seed(0)
    untrained = sum_network(SMALL)
    at_rest, _, _ = run(Steps(1))  # its only step is at the rate of no progress, zero
    moved, _, _ = run(Steps(2))
    for start, same, other in zip(
        untrained.parameters(), at_rest.parameters(), moved.parameters(), strict=True
    ):
        assert torch.equal(start, same)
        assert not torch.equal(start, other)
