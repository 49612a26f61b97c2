"""Nesterov's method with safeguards: its formula, its promise, and what it is needed for."""

import math

import pytest
import torch
from energies import Function, random_quadratic, random_rugged, states_of
from hypothesis import given
from hypothesis import strategies as st

from equipool import ConvexPotential, EquilibriumAggregation, SquaredNorm
from equipool.differentiation import Implicit, Unrolled
from equipool.solvers import SafeguardedNesterov

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
