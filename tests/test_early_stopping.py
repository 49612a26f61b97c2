"""Sets that have reached the tolerance stop, where they are, and cost no more."""

from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import equipool
from cases import assert_near, first_seed, flatten, make_layer, make_sets
from equipool import ToTolerance, descent

SIZES = (2, 5, 0, 1, 9, 3)
BATCHES = (SIZES, (2, 5, 9, 3), (2, 5, 3), (2, 5, 9))


def solving_layer(tolerance=1e-4, max_steps=400, **options):
    return layer_of_seed(converging_seed(), ToTolerance(tolerance, max_steps), **options)


def layer_of_seed(seed, steps, **options):
    layer = make_layer(hidden=(5, 3), learning_rate=0.03, momentum=0.8, seed=seed, **options)
    layer.steps = steps
    return layer


@cache
def converging_seed():
    """Of a layer that solves the sets of these tests, in different numbers of steps: energies of
    random weights may need more than any number."""

    @torch.no_grad()
    def suits(seed):
        layers = [layer_of_seed(seed, ToTolerance(tolerance, 400)) for tolerance in (1e-4, 1e-8)]
        batches = [flatten(make_sets(sizes)) for sizes in BATCHES]
        solutions = [layer.solve(*batch) for layer in layers for batch in batches]
        distinct = all(s.num_steps[s.occupied].unique().numel() > 2 for s in solutions)
        return distinct and all(s.converged.all() for s in solutions)

    return first_seed(suits, start=2)


@pytest.fixture(params=["compacted", "masked", "with a graph"])
def way(request, monkeypatch):
    """Stopped sets are dropped, at once; or masked to the end; or masked because of a graph."""
    limits = {"compacted": 1.0, "masked": -1.0, "with a graph": 1.0}
    monkeypatch.setattr(descent, "COMPACT_BELOW", limits[request.param])
    with torch.set_grad_enabled(request.param == "with a graph"):
        yield request.param


def naive_stops(layer, x):
    """For one set: the listing's loop, stopped by hand. Where it ended, and after how many steps"""
    y = v = torch.zeros(1, layer.out_channels, dtype=x.dtype)
    for step in range(1, layer.steps.max_steps + 1):
        point = (y + layer.solver.momentum * v).detach().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(layer.energy(x)(point).sum(), point)
        if g.abs().max() <= layer.steps.tolerance:
            return point.detach(), step
        v = layer.solver.momentum * v - layer.solver.learning_rate * g
        y = y + v
    return y.detach(), layer.steps.max_steps


@pytest.mark.parametrize("factored", [True, False], ids=["factored", "autograd"])
def test_each_set_stops_by_itself(factored, way):
    """Against a loop over each set alone, in every way to leave out the sets that have stopped."""
    layer = solving_layer(factored=factored)
    sets = make_sets(SIZES)
    x, index = flatten(sets)
    solution = layer.solve(x, index, dim_size=len(sets))
    stops = [naive_stops(layer, elements) for elements in sets if len(elements)]
    stops.insert(2, (torch.zeros(1, 4, dtype=x.dtype), 1))  # the empty set
    assert solution.num_steps.tolist() == [steps for _, steps in stops]
    assert len(set(solution.num_steps.tolist())) > 3
    assert_near(solution.y, torch.cat([y for y, _ in stops]), 1e-11)
    assert (solution.residual <= layer.steps.tolerance).all()
    assert solution.converged.all()


def test_a_set_that_is_not_finite_stops_at_once_and_holds_up_no_other(way):
    layer = solving_layer(max_steps=300)
    x, index = flatten(make_sets((2, 5, 3)))
    expected = layer.solve(x, index)
    x[3, 1] = torch.nan
    solution = layer.solve(x, index)
    assert solution.num_steps.tolist() == [expected.num_steps[0], 1, expected.num_steps[2]]
    assert solution.y[1].isnan().all()
    assert solution.converged.tolist() == [True, False, True]
    assert_near(solution.y[[0, 2]], expected.y[[0, 2]], 1e-11)


@pytest.mark.parametrize("max_steps", [0, 1, 3])
def test_no_set_takes_more_steps_than_it_may(max_steps, way):
    layer = solving_layer(1e-12, max_steps)
    x, index = flatten(make_sets((2, 5)))
    solution = layer.solve(x, index)
    assert solution.num_steps.tolist() == [max_steps, max_steps]
    assert solution.max_steps == max_steps
    layer.steps = max_steps
    assert_near(solution.y, layer.solve(x, index).y, 1e-13)


def test_the_auxiliary_loss_is_a_mean_over_the_steps_that_were_taken(way):
    layer = solving_layer(1e-2)
    sets = make_sets((2, 5, 3))
    whole = layer.solve(*flatten(sets))
    parts = [layer.solve(elements) for elements in sets]
    assert len({int(part.num_steps) for part in parts}) > 1
    assert_near(whole.aux_loss, sum(part.aux_loss for part in parts) / 3, 1e-12)
    layer.steps = int(parts[0].num_steps)
    assert_near(layer.solve(sets[0]).aux_loss, parts[0].aux_loss, 1e-12)


def test_the_trajectory_stays_where_a_set_stopped(way):
    layer = solving_layer(1e-2)
    x, index = flatten(make_sets((2, 5, 3)))
    solution = layer.solve(x, index, trajectory=True)
    last = int(solution.num_steps.max())
    assert solution.trajectory.shape[0] == last + 1
    for row, steps in enumerate(solution.num_steps):
        path = solution.trajectory[:, row]
        assert (path[int(steps) :] == solution.y[row]).all()
        assert not torch.equal(path[int(steps) - 2], solution.y[row])


class Valley(nn.Module):
    """A parabola whose curvature is the element, and the count of elements it was asked for."""

    def __init__(self):
        super().__init__()
        self.elements = 0
        self.calls = 0

    def forward(self, x, y):
        self.elements += len(x)
        self.calls += 1
        return 0.5 * (x * (y - 1).square()).sum(-1)


def valley_layer(steps):
    return equipool.EquilibriumAggregation(
        1, 1, potential=Valley(), regularizer=0, scaling="mean",
        solver=equipool.Nesterov(0.1, 0.0), steps=steps,
    ).double()  # fmt: skip


def fast_and_slow(num_sets=20, elements=3):
    """Half of the sets converge in a few steps, the others in many: curvatures 9 and 2."""
    curvature = torch.where(torch.arange(num_sets) % 2 == 0, 9.0, 2.0).double()
    index = torch.arange(num_sets).repeat_interleave(elements)
    return curvature[index].unsqueeze(-1), index


def test_sets_that_have_stopped_cost_nothing():
    x, index = fast_and_slow()
    layer = valley_layer(ToTolerance(1e-6, 200))
    with torch.no_grad():
        layer(x, index)
        evaluated, calls = layer.potential.elements, layer.potential.calls
        steps = layer.solve(x, index).num_steps
    fast, slow = int(steps[0]), int(steps[1])
    assert 5 <= fast < 10
    assert 40 < slow < 100
    assert torch.equal(steps, torch.tensor([fast, slow]).repeat(10))
    assert calls == slow
    assert evaluated == 30 * fast + 30 * slow  # and not 60 * slow


class ComputedState(NamedTuple):
    y: Tensor
    previous: Tensor
    gradient: Tensor

    @property
    def point(self):
        return self.y + 0.8 * (self.y - self.previous)


class Computed(equipool.solvers.Solver):
    """Nesterov's momentum whose look-ahead is not kept but computed, from y among others."""

    def init(self, y, num_steps, objective):
        return ComputedState(y, y, torch.zeros_like(y))

    def step(self, objective, state):
        g = objective.gradient(state.point)
        return ComputedState(state.point - 0.03 * g, state.y, g)


def test_a_set_stays_where_it_stopped_whatever_its_state_says_of_the_point(way):
    layer = solving_layer()
    layer.solver = equipool.Nesterov(0.03, 0.8).double()
    x, index = flatten(make_sets(SIZES))
    expected = layer.solve(x, index)
    layer.solver = Computed()
    found = layer.solve(x, index)
    assert torch.equal(found.num_steps, expected.num_steps)
    assert_near(found.y, expected.y, 1e-11)


class Shortening(equipool.GradientDescent):
    """A solver whose steps, the same for all rows, grow shorter."""

    def step(self, objective, state):
        state = super().step(objective, state)
        return state._replace(learning_rate=0.995 * state.learning_rate)


def test_what_all_rows_share_goes_on_beside_sets_that_have_stopped(way):
    layer = solving_layer(1e-3)
    layer.solver = Shortening(0.03, 0.8).double()
    sets = make_sets((2, 5, 9))
    whole = layer.solve(*flatten(sets))
    assert whole.converged.all()
    assert whole.num_steps.unique().numel() > 1
    for row, elements in enumerate(sets):
        # In its last step a set only finds that it has arrived.
        layer.steps = int(whole.num_steps[row]) - 1
        assert_near(whole.y[row : row + 1], layer(elements), 1e-12)
