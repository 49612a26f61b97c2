"""Newton's method: its formula, its promise, and the gradient of one step at a minimum."""

import math

import pytest
import torch
from energies import Function, random_quadratic, random_rugged, states_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import flatten, make_layer, make_sets
from equipool import Implicit, Truncated
from equipool.solvers import Newton

seeds = st.integers(0, 2**31)


@given(seeds)
def test_one_step_to_the_minimum_of_a_bowl(seed):
    objective = random_quadratic(3, 4, 1e4, seed)
    _, state = states_of(Newton(), objective, torch.zeros(3, 4, dtype=torch.float64), 1)
    torch.testing.assert_close(state.y, objective.rows[1])
    assert not state.rung.any()


def plain_step(objective, y, rung, damping):
    """The documented step of one row, one damping after the other."""
    g = objective.gradient(y)[0]
    matrix = torch.func.hessian(lambda y: objective.value(y.unsqueeze(0))[0])(y[0])
    energy = objective.value(y)
    for tried in range(rung, rung + 4):
        shift = 0 if tried == 0 else damping * 10.0 ** (tried - 1)
        damped = matrix + shift * matrix.abs().sum(-1).max() * torch.eye(len(g), dtype=g.dtype)
        if torch.linalg.eigvalsh(damped).min() <= 0:
            continue
        step = torch.linalg.solve(damped, g)
        rounding = 32 * torch.finfo(g.dtype).eps * energy.abs()
        if objective.value(y - step) <= energy - 0.1 * (g @ step) + rounding:
            return y - step, max(tried - 1, 0)
    return y, min(rung + 4, 12)


@settings(max_examples=5)
@given(seeds, st.sampled_from([1e-3, 0.02]))
def test_steps_as_documented(seed, damping):
    objective = random_rugged(4, 2, 1.0, seed)
    y = torch.randn(4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    states = states_of(Newton(damping), objective, y, 6)
    for row in range(4):
        one = torch.tensor([row])
        point, rung = y[one], 0
        for state in states[1:]:
            if objective.restrict(one).gradient(point).abs().max() < 1e-4:
                break  # further on, rounding decides
            point, rung = plain_step(objective.restrict(one), point, rung, damping)
            torch.testing.assert_close(state.y[one], point)
            assert state.rung[row] == rung


def test_down_from_a_hilltop():
    """Where the energy curves downwards, an undamped step would lead up, to the top."""
    objective = Function(lambda y: torch.cos(y).sum(-1))
    y = torch.full((1, 2), 0.1, dtype=torch.float64)
    state = states_of(Newton(), objective, y, 30)[-1]
    torch.testing.assert_close(objective.value(state.y), torch.tensor([-2.0], dtype=torch.float64))


def test_rows_without_energy_or_without_numbers_stay():
    weight = torch.tensor([[0.0], [math.nan], [1.0]])
    objective = Function(lambda y, weight: (weight * (y - 1).square()).sum(-1), weight)
    y = torch.zeros(3, 2, requires_grad=True)
    state = states_of(Newton(), objective, y, 5)[-1]
    assert torch.equal(state.y[:2], y[:2])
    assert state.rung[1] == 12  # any higher, and the damping would overflow before long
    torch.testing.assert_close(state.y[2], torch.ones(2))
    (by_y,) = torch.autograd.grad(state.y[[0, 2]].sum(), y)
    assert torch.equal(by_y[0], torch.ones(2))


def test_one_step_at_the_minimum_has_the_implicit_gradient():
    x, index = flatten(make_sets((3, 5, 1, 8)))
    layer = make_layer(hidden=(16, 8), factored=False, seed=4)
    layer.solver, layer.steps = Newton(), 60
    inputs = [x.requires_grad_(), *layer.potential.parameters(), *layer.regularizer.parameters()]
    found = []
    for layer.differentiation in (Truncated(1), Implicit("cholesky")):
        solution = layer.solve(x, index)
        found.append(torch.autograd.grad(solution.y.sin().sum(), inputs))
        assert solution.residual.max() < 1e-12
        assert not solution.fallback.any()
    for one, expected in zip(*found, strict=True):
        torch.testing.assert_close(one, expected, atol=1e-9, rtol=1e-7)


def test_large_outputs_are_refused():
    message = "y has 513 channels, expected at most 512 .* use SafeguardedNesterov"
    with pytest.raises(ValueError, match=message):
        Newton().init(torch.zeros(1, 513), 1, Function(lambda y: y.sum(-1)))
    Newton().init(torch.zeros(1, 512), 1, Function(lambda y: y.sum(-1)))
