"""A random number of inner steps in the engine: a function of seed and step."""

import contextlib
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from toy import Pooled, Toy, config

import equipool
from equipool import EquilibriumAggregation, RandomSteps
from equipool.training import fit
from equipool.training.step import DepthDraw


def layer(steps):
    return EquilibriumAggregation(1, 2, steps=steps)


def test_draws_depend_on_seed_and_step_alone():
    network = nn.ModuleList([layer(RandomSteps(5, 80)), layer(7)])
    draw = DepthDraw(network, seed=3)
    torch.manual_seed(0)
    found = [draw(step) for step in range(2000)]
    torch.manual_seed(1)
    again = DepthDraw(network, seed=3)
    assert [again(step) for step in reversed(range(2000))] == found[::-1]
    assert [DepthDraw(network, seed=4)(step) for step in range(2000)] != found
    counts = Counter(found)
    assert sorted(counts) == [(5,), (10,), (20,), (40,), (80,)]
    assert all(300 < count < 500 for count in counts.values())
    assert draw.all() == sorted(counts, reverse=True)


def test_one_draw_serves_all_layers():
    """So that there are few combinations, and each layer's numbers are equally likely."""
    network = nn.ModuleList([layer(RandomSteps(1, 4)), layer(RandomSteps(2, 4))])
    draw = DepthDraw(network, seed=0)
    assert draw.all() == [(4, 4), (2, 4), (2, 2), (1, 2)]
    found = Counter(draw(step) for step in range(3000))
    assert sorted(found) == sorted(draw.all())
    assert 1300 < sum(n for (_, second), n in found.items() if second == 2) < 1700


def test_layers_get_their_steps_back():
    one = layer(RandomSteps(1, 4, tolerance=0.5))
    draw = DepthDraw(one, seed=0)
    with contextlib.suppress(KeyError), draw.set_to((2,)):
        assert one.steps == equipool.FixedSteps(2, tolerance=0.5)
        raise KeyError
    assert one.steps == RandomSteps(1, 4, tolerance=0.5)


def test_training_takes_the_drawn_depths_and_evaluation_the_largest(monkeypatch):
    taken = {True: [], False: []}
    forward = Pooled.forward

    def watched(self, x):
        with equipool.record(diagnostics=False) as solutions:
            found = forward(self, x)
        taken[self.training] += [solution.num_steps for solution in solutions]
        return found

    monkeypatch.setattr(Pooled, "forward", watched)
    fitted = fit(Toy(kind="deep", seed=2), config(), "cpu")
    draw = DepthDraw(fitted.network, seed=2)
    assert taken[True] == [draw(step)[0] for step in range(20)]
    assert len(set(taken[True])) == 3
    assert set(taken[False]) == {4}


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
def test_compiled_it_trains_the_same(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    found = [fit(Toy(kind="deep"), config(compile=c), "cpu").history["loss"] for c in (True, False)]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
