"""How long a layer searches, and the arguments that say so."""

import copy

import numpy as np
import pytest
import torch

from cases import flatten, make_layer, make_sets
from equipool import Budget, EquilibriumAggregation, Fixed, Steps, ToTolerance


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
