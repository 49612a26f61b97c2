"""Step and momentum from bounds of the curvature: the theory's rate, and what is refused."""

import itertools

import pytest
import torch
from energies import Function, quadratic, random_quadratic, states_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import flatten, make_sets
from equipool import EquilibriumAggregation, SquaredNorm, ToTolerance
from equipool.objective import Bounds
from equipool.potentials.convex import ConvexPotential
from equipool.solvers import StronglyConvexNesterov

seeds = st.integers(0, 2**31)


def bowl(seed, condition, num_rows=3):
    """Its curvature lies between 1 and the condition number."""
    objective = random_quadratic(num_rows, 4, condition, seed)
    lower = torch.ones(num_rows, dtype=torch.float64)
    return Function(quadratic, *objective.rows, bounds=Bounds(lower, condition * lower))


def test_steps_by_the_formula():
    objective = bowl(0, 9.0)
    y = point = torch.zeros(3, 4, dtype=torch.float64)
    states = states_of(StronglyConvexNesterov(), objective, y, 6)
    for before, after in itertools.pairwise(states):
        torch.testing.assert_close(before.point, point)
        torch.testing.assert_close(after.gradient, objective.gradient(point))
        old, y = y, point - objective.gradient(point) / 9
        point = y + (3 - 1) / (3 + 1) * (y - old)
        torch.testing.assert_close(after.y, y)


@settings(max_examples=6)
@given(seeds, st.sampled_from([1.0, 10.0, 1e3, 1e5]))
def test_the_rate_of_the_theory(seed, condition):
    """Nesterov 2004, theorem 2.2.3, at every step of the way."""
    objective = bowl(seed, condition)
    y = torch.zeros(3, 4, dtype=torch.float64)
    away = (y - objective.rows[1]).square().sum(-1)
    for t, state in enumerate(states_of(StronglyConvexNesterov(), objective, y, 200)):
        bound = (condition + 1) / 2 * away * (1 - condition**-0.5) ** t
        assert bool((objective.value(state.y) <= bound + 1e-12 * condition).all())


def convex_layer(weight=0.5, regularizer=None):
    torch.manual_seed(0)
    return EquilibriumAggregation(
        3, 4, potential=ConvexPotential(3, 4, hidden=(8, 6)),
        regularizer=regularizer if regularizer is not None else SquaredNorm(weight),
        solver=StronglyConvexNesterov(), steps=ToTolerance(1e-9, 2000), scaling="sum",
    ).double()  # fmt: skip


def test_unknown_bounds_are_refused():
    layer = EquilibriumAggregation(3, 4, solver=StronglyConvexNesterov())
    with pytest.raises(ValueError, match=r"bounds .* are not known.* use a ConvexPotential"):
        layer(torch.randn(2, 3))


def test_an_energy_that_is_convex_but_not_strongly_is_refused():
    x, index = flatten(make_sets((2, 0, 3)))
    message = "curvature of 2 sets is bounded from below by 0, expected more than 0"
    with pytest.raises(ValueError, match=message):
        convex_layer(regularizer=0)(x, index)


def test_where_bounds_are_not_looked_at_such_a_row_descends_without_momentum(monkeypatch):
    monkeypatch.setattr("equipool.solvers.strongly_convex.values_are_at_hand", lambda _: False)
    objective = bowl(0, 4.0)
    objective.known_bounds = Bounds(torch.tensor([-1.0, 0, 1]), torch.tensor([4.0, 4, 4]))
    state = StronglyConvexNesterov().init(torch.zeros(3, 4), 1, objective)
    torch.testing.assert_close(state.momentum, torch.tensor([[0.0], [0.0], [1 / 3]]))
    torch.testing.assert_close(state.size, torch.full((3, 1), 0.25))
