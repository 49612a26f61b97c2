"""Nesterov's method with safeguards: its formula, its promise, and what it is needed for."""

import itertools
import math
from functools import cache

import pytest
import torch
from energies import Function, random_quadratic, random_rugged, states_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import first_seed
from equipool import ConvexPotential, EquilibriumAggregation, ResNetPotential, SquaredNorm
from equipool.differentiation import Implicit, Truncated, Unrolled
from equipool.solvers import Nesterov, SafeguardedNesterov
from equipool.steps import ToTolerance

seeds = st.integers(0, 2**31)
exponents = st.integers(-6, 6)
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def plain_path(objective, y, learning_rate, num_steps):
    """The documented method for one row, decision by decision."""

    def energy(y):
        return objective.value(y).item()

    point, previous, last = y, y, torch.zeros_like(y)
    size, age, curvature, lowest = learning_rate, 0, 0.0, energy(y)
    at_point, path = lowest, [y]
    for _ in range(num_steps):
        eps = torch.finfo(y.dtype).eps
        rounding = 32 * eps * abs(lowest)
        g = objective.gradient(point)
        promise = size * g.square().sum().item()
        candidate = point - size * g
        new = energy(candidate)
        moved, turned = (point - previous).norm().item(), (g - last).norm().item()
        curvature *= 0.99 if promise > rounding else 1
        if moved > 1000 * eps * point.norm().item():
            curvature = max(curvature, turned / moved)
        enough = new <= at_point - promise / 2 + rounding and new <= lowest + rounding
        previous, last = point, g
        if not (enough and math.isfinite(new)):
            size = size / 2 if promise > 0 else size
            path.append(y)
            continue
        age = 0 if (g * (candidate - y)).sum() > 0 else age + 1
        ahead = candidate + age / (age + 3) * (candidate - y)
        y, lowest = candidate, min(lowest, new)
        limit = 1 / curvature if promise <= rounding and curvature > 0 else math.inf
        size = min(1.1 * size, limit) if promise > 0 else size
        at_ahead = energy(ahead)
        if at_ahead <= lowest + 32 * eps * abs(lowest):
            point, at_point = ahead, at_ahead
        else:
            point, at_point, age = y, lowest, 0
        path.append(y)
    return path


def assert_as_documented(objective, y, learning_rate, num_steps):
    states = states_of(SafeguardedNesterov(learning_rate), objective, y, num_steps)
    for row in range(len(y)):
        one = torch.tensor([row])
        expected = plain_path(objective.restrict(one), y[one], learning_rate, num_steps)
        found = torch.stack([state.y[one] for state in states])
        torch.testing.assert_close(found, torch.stack(expected))


@given(seeds, exponents)
def test_steps_as_documented(seed, exponent):
    y = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_as_documented(random_rugged(3, 2, 1.0, seed), y, 10.0**exponent, 25)


@settings(max_examples=5)
@given(seeds, exponents)
def test_minimum_of_badly_scaled_bowls(seed, exponent):
    objective = random_quadratic(3, 4, 100.0, seed)
    y = torch.zeros(3, 4, dtype=torch.float64)
    state = states_of(SafeguardedNesterov(10.0**exponent), objective, y, 300)[-1]
    torch.testing.assert_close(state.y, objective.rows[1], atol=1e-4, rtol=0)


def test_float32_gets_on_where_the_decrease_is_lost_in_rounding():
    """At an energy of a thousand, no step this small shows in it."""
    bowl = random_quadratic(4, 3, 50.0, 0, torch.float32)
    matrix, center = bowl.rows
    lifted = Function(lambda y, *rows: 1000 + bowl.function(y, *rows), matrix, center)
    y = center + 0.01
    state = states_of(SafeguardedNesterov(1e-7), lifted, y, 600)[-1]
    assert lifted.gradient(state.y).abs().max() < 1e-4


@pytest.mark.parametrize("exponent", [10, 12, 14])
@pytest.mark.parametrize("seed", range(4))
def test_steps_as_documented_where_rounding_hides_the_decrease(seed, exponent):
    """In a bowl so high that its rounding hides the last digits of the way down."""
    bowl = random_quadratic(3, 2, 100.0, seed)
    lifted = Function(lambda y, *rows: 10.0**exponent + bowl.function(y, *rows), *bowl.rows)
    y = bowl.rows[1] + torch.tensor([1.0, -0.5], dtype=torch.float64)
    assert_as_documented(lifted, y, 0.01, 20)


@pytest.mark.parametrize("precision", DTYPES)
def test_steps_that_go_on_at_the_minimum_leave_the_gradient_alone(precision):
    """Unrolled, 200 steps of which most change nothing have the gradient of the minimum."""
    for seed in range(4):
        torch.manual_seed(seed)
        layer = EquilibriumAggregation(
            3, 2, potential=ConvexPotential(3, 2, hidden=(6, 5)), regularizer=SquaredNorm(1.0),
            solver=SafeguardedNesterov(), steps=200,
        ).to(DTYPES[precision])  # fmt: skip
        torch.nn.init.normal_(layer.potential.slope.weight)
        x, index = torch.randn(40, 3), torch.arange(8).repeat_interleave(5)
        x = x.to(DTYPES[precision]).requires_grad_()
        gradients = []
        for way in (Unrolled(), Implicit("cholesky")):
            layer.differentiation = way
            gradients.append(torch.autograd.grad(layer(x, index).sum(), x)[0])
        unrolled, implicit = gradients
        assert (unrolled - implicit).norm() < 0.01 * implicit.norm(), seed


class Misleading(Function):
    """The way down leads up, each step by less than what counts as rounding."""

    def gradient(self, y):
        return torch.full_like(y, -1e-8)


@pytest.mark.parametrize("slope", [1e8, 1e9, 3e9, 1e10])
def test_rounding_does_not_add_up(slope):
    eps = torch.finfo(torch.float64).eps
    objective = Misleading(lambda y: 1 + slope * eps * y.sum(-1))
    states = states_of(SafeguardedNesterov(), objective, torch.zeros(1, 1).double(), 300)
    energies = torch.cat([objective.value(state.y) for state in states])
    assert 1 < energies.max() <= 1 + 33 * eps


def test_a_row_without_energy_stays_and_its_step_size_does_not_grow():
    objective = Function(lambda y: 0 * y.sum(-1))
    y = torch.randn(2, 3)
    states = states_of(SafeguardedNesterov(0.5), objective, y, 20)
    assert torch.equal(states[-1].y, y)
    assert torch.equal(states[-1].size, torch.full((2, 1), 0.5))


def test_step_sizes_and_decisions_are_constants_to_the_gradient():
    """The gradient through the steps is that of the same steps written down as they were."""
    objective = random_rugged(3, 2, 1.0, 5)
    y = torch.full((3, 2), 0.4, dtype=torch.float64, requires_grad=True)
    states = states_of(SafeguardedNesterov(1.0), objective, y, 12)
    sizes = torch.stack([state.size for state in states])
    assert bool((sizes.diff(dim=0) < 0).any(0).all())  # refused in every row
    assert bool((sizes.diff(dim=0) > 0).any(0).all())  # and taken
    (found,) = torch.autograd.grad(states[-1].y.sum(), y)

    replayed, point, old = y, y, None
    for before, after in itertools.pairwise(states):
        moved = (after.y != before.y).any(-1, keepdim=True)
        old, candidate = replayed, point - before.size * objective.gradient(point)
        replayed = torch.where(moved, candidate, replayed)
        ahead = replayed + after.age / (after.age + 3) * (replayed - old)
        point = torch.where(moved, ahead, point)
    (expected,) = torch.autograd.grad(replayed.sum(), y)
    torch.testing.assert_close(found, expected)


def bad_layer(solver, seed, in_channels, hidden, reduction, max_steps=4000):
    torch.manual_seed(seed)
    potential = ResNetPotential(in_channels, 64, hidden, reduction, bias_std=0.0)
    layer = EquilibriumAggregation(
        in_channels, 64, potential=potential, solver=solver, steps=ToTolerance(1e-3, max_steps)
    )
    return layer.double(), torch.randn(26, in_channels).double()


BAD_CASES = {
    "one channel in": (1, None, "mean"),
    "one channel out": (64, (64, 64, 1), "mean"),
    "squares summed": (64, None, "sum"),
}


@cache
def bad_seed(case):
    """Of untrained weights with which the paper's steps do not minimise the energy."""

    @torch.no_grad()
    def suits(seed):
        layer, x = bad_layer(Nesterov(), seed, *BAD_CASES[case], max_steps=400)
        return not layer.solve(x).converged

    return first_seed(suits)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("case", BAD_CASES)
def test_untrained_energies_that_the_paper_s_steps_do_not_minimise(case, precision):
    layer, x = bad_layer(SafeguardedNesterov(), bad_seed(case), *BAD_CASES[case])
    layer, x = layer.to(DTYPES[precision]), x.to(DTYPES[precision])
    with torch.no_grad():
        solution = layer.solve(x)
    assert solution.converged
    assert solution.residual <= 1e-3
    assert solution.energy < layer.energy(x)(torch.zeros_like(solution.y))


def test_further_steps_go_on_with_what_was_found_out():
    objective = random_quadratic(2, 3, 10.0, 0)
    solver = SafeguardedNesterov(100.0)
    state = states_of(solver, objective, torch.zeros(2, 3, dtype=torch.float64), 30)[-1]
    rest = solver.at_rest(state, state.y, 3, objective)
    assert torch.equal(rest.size, state.size)
    assert torch.equal(rest.curvature, state.curvature)
    assert bool((rest.curvature > 1).all())
    assert torch.equal(rest.point, state.y)
    assert not rest.age.any()


def test_gradients_of_a_solve_that_stops_early_are_finite_and_not_zero():
    torch.manual_seed(0)
    layer = EquilibriumAggregation(
        3,
        4,
        solver=SafeguardedNesterov(),
        differentiation=Truncated(1),
        steps=ToTolerance(1e-3, 300),
    )
    layer(torch.randn(6, 3)).sum().backward()
    for parameter in layer.potential.linears.parameters():
        assert bool(parameter.grad.isfinite().all())
    assert layer.potential.linears[0].weight.grad.abs().max() > 0
