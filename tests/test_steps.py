"""How long a layer searches, and the arguments that say so."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cases import flatten, make_layer, make_sets
from equipool import Budget, EquilibriumAggregation, Fixed, RandomSteps, Steps, ToTolerance


def make(**options):
    return EquilibriumAggregation(3, 4, **options)


@pytest.mark.parametrize("given", [7, Fixed(7), np.int64(7)])
def test_a_number_is_short_for_fixed(given):
    assert make(steps=given).steps == Fixed(7)
    assert make(num_steps=7).steps == Fixed(7)
    assert make(steps=given).num_steps == 7


def test_ten_steps_by_default():
    assert make().steps == Fixed(10, tolerance=1e-3)


def test_both_arguments_at_once():
    with pytest.raises(ValueError, match=r"steps is Fixed\(.*num_steps is 4: give one of them"):
        make(steps=Fixed(3), num_steps=4)


@pytest.mark.parametrize("name", ["max_steps", "tolerance"])
def test_what_moved_into_the_object_is_no_argument(name):
    with pytest.raises(TypeError, match=name):
        make(**{name: 3})


def test_num_steps_changes_the_fixed_number_alone():
    layer = make(steps=Fixed(3, tolerance=0.5))
    layer.num_steps = 8
    assert layer.steps == Fixed(8, tolerance=0.5)
    layer.steps = 5
    assert layer.num_steps == 5


def test_num_steps_cannot_be_set_where_it_would_be_ignored():
    layer = make(steps=ToTolerance(1e-2, 30))
    assert layer.num_steps == 30
    with pytest.raises(AttributeError, match=r"assign layer\.steps"):
        layer.num_steps = 5
    assert layer.steps == ToTolerance(1e-2, 30)


@pytest.mark.parametrize("bad", [-1, 2.5, True, "3", Fixed, None])
def test_bad_numbers_of_steps(bad):
    for make_steps in (Fixed, lambda n: ToTolerance(1e-3, n)):
        with pytest.raises((TypeError, ValueError), match="steps is"):
            make_steps(bad)
    if bad is not None:
        with pytest.raises((TypeError, ValueError), match="steps is"):
            make(steps=bad)


@pytest.mark.parametrize("kind", [Fixed, ToTolerance])
@pytest.mark.parametrize("bad", [-1e-3, float("nan")])
def test_bad_tolerances(kind, bad):
    with pytest.raises(ValueError, match="tolerance is"):
        kind(tolerance=bad)


def test_tolerance_of_a_fixed_search_changes_no_output():
    x, index = flatten(make_sets((3, 5)))
    layer = make_layer()
    y = layer(x, index)
    layer.steps = Fixed(layer.num_steps, tolerance=1e9)
    assert torch.equal(layer(x, index), y)
    assert layer.solve(x, index).converged.all()


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
    assert [layer.solve(x).num_steps for _ in range(4)] == [3, 2, 3, 2]
    layer.eval()
    solution = layer.solve(x)
    assert (solution.num_steps, solution.steps.tolist()) == (9, [9])


def test_copies_keep_their_steps():
    layer = make(steps=ToTolerance(1e-2, 30))
    other = copy.deepcopy(layer)
    other.steps = 4
    assert layer.steps == ToTolerance(1e-2, 30)
    assert "ToTolerance(tolerance=0.01, max_steps=30)" in repr(layer)


def drawn(steps, number=200):
    return [steps.budget(training=True).num_steps for _ in range(number)]


@pytest.mark.parametrize(
    ("least", "most", "choices"),
    [
        (5, 80, (5, 10, 20, 40, 80)),
        (3, 40, (3, 6, 12, 24, 40)),
        (1, 1, (1,)),
        (4, 5, (4, 5)),
        (4, 8, (4, 8)),
    ],
)
def test_random_steps_are_drawn_from_a_short_list(least, most, choices):
    steps = RandomSteps(least, most)
    assert steps.choices == choices
    assert set(drawn(steps, 100 * len(choices))) == set(choices)
    assert steps.budget(training=False) == Budget(most, 1e-3)


def test_random_steps_follow_torchs_seed():
    torch.manual_seed(3)
    first = drawn(RandomSteps(), 30)
    torch.manual_seed(3)
    assert drawn(RandomSteps(), 30) == first
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        assert drawn(RandomSteps(), 30) != first


def test_a_layer_draws_once_per_training_call_and_never_in_evaluation():
    layer, x = make(steps=RandomSteps(2, 16)), torch.randn(5, 3)
    torch.manual_seed(0)
    expected = drawn(layer.steps, 10)
    torch.manual_seed(0)
    assert [layer.solve(x).num_steps for _ in range(10)] == expected
    layer.eval()
    before = torch.random.get_rng_state()
    assert (layer.solve(x).num_steps, layer.num_steps) == (16, 16)
    layer.train()
    assert layer.num_steps == 16
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "least is 0, expected an int of 1 or more"),
        ((5, 4), "most is 4, expected an int of 5 or more"),
        ((2.5, 4), "least is 2.5"),
        ((2, True), "most is True"),
        ((2, 4, -1.0), "tolerance is"),
    ],
)
def test_bad_random_steps(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RandomSteps(*arguments)


def test_random_steps_are_a_value():
    layer = make(steps=RandomSteps(2, 9))
    assert layer.steps == RandomSteps(2, 9) == copy.deepcopy(layer).steps
    assert hash(layer.steps) == hash(RandomSteps(2, 9))
    assert pickle.loads(pickle.dumps(layer.steps)) == layer.steps
    assert "RandomSteps(least=2, most=9, tolerance=0.001)" in repr(layer)
    with pytest.raises(AttributeError, match=r"assign layer\.steps"):
        layer.num_steps = 5


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
