"""How long a layer searches, and the arguments that say so."""

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from equipool import EquilibriumAggregation, FixedSteps, RandomSteps
from equipool.steps import Budget, Steps


def make(**options):
    return EquilibriumAggregation(3, 4, **options)


@pytest.mark.parametrize("given", [7, FixedSteps(7), np.int64(7)])
def test_a_number_is_short_for_fixed_steps(given):
    assert make(steps=given).steps == FixedSteps(7)
    assert make(steps=given).steps.max_steps == 7
    assert make().steps == FixedSteps(10, tolerance=1e-3)


class Alternating(Steps):
    """A number of steps that changes from call to call in training."""

    tolerance = 1e-3

    def __init__(self):
        self.calls = 0

    def budget(self, training):
        self.calls += training
        return Budget(2 + self.calls % 2 if training else 9, self.tolerance)


def test_steps_of_your_own_are_asked_once_per_call():
    layer = make(steps=Alternating())
    x = torch.randn(5, 3)
    assert [layer.solve(x).max_steps for _ in range(4)] == [3, 2, 3, 2]
    layer.eval()
    solution = layer.solve(x)
    assert (solution.max_steps, solution.num_steps.tolist()) == (9, [9])


def drawn(steps, number=200):
    return [steps.budget(training=True).num_steps for _ in range(number)]


@pytest.mark.parametrize(
    ("least", "most", "choices"),
    [
        (5, 80, (5, 10, 20, 40, 80)),
        (1, 1, (1,)),
        (4, 8, (4, 8)),
    ],
)
def test_random_steps_are_drawn_from_a_short_list(least, most, choices):
    steps = RandomSteps(least, most)
    assert steps.choices == choices
    assert set(drawn(steps, 100 * len(choices))) == set(choices)
    assert steps.budget(training=False) == Budget(most, 1e-3)


def test_a_layer_draws_once_per_training_call_and_never_in_evaluation():
    layer, x = make(steps=RandomSteps(2, 16)), torch.randn(5, 3)
    torch.manual_seed(0)
    expected = drawn(layer.steps, 10)
    assert len(set(expected)) > 1
    torch.manual_seed(0)
    assert [layer.solve(x).max_steps for _ in range(10)] == expected
    layer.eval()
    before = torch.random.get_rng_state()
    assert layer.solve(x).max_steps == layer.steps.max_steps == 16
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_checkpointed_layer_repeats_its_draw():
    layer, x = make(steps=RandomSteps(1, 8)), torch.randn(5, 3, requires_grad=True)
    for seed in range(5):
        gradients = []
        for checkpointed in (True, False):
            torch.manual_seed(seed)
            y = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
            torch.randn(1)  # between forward and backward
            gradients += torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(*gradients)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
def test_compiled_every_number_is_compiled_once():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    layer, x, index = make(steps=RandomSteps(1, 2)), torch.randn(5, 3), torch.arange(5) % 2
    compiled = torch.compile(layer, backend=counter)
    for seed in range(15):
        torch.manual_seed(seed)
        expected = layer(x, index, dim_size=2)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x, index, dim_size=2), expected)
    assert counter.frame_count == 1 + len(layer.steps.choices)  # and what precedes the draw
