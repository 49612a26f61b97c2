"""Another solver's steps, then Newton's."""

from functools import cache

import pytest
import torch
from energies import random_rugged, states_of

from cases import first_seed, flatten, make_layer, make_sets
from equipool import Nesterov, ToTolerance
from equipool.solvers import Newton, SafeguardedNesterov

OBJECTIVE = random_rugged(3, 2, 1.0, 0)
START = torch.full((3, 2), 0.7, dtype=torch.float64)


def solvers():
    return Nesterov(0.002, 0.6).double(), Newton()


@pytest.mark.parametrize(("num_steps", "newton_steps"), [(7, 2), (3, 3), (2, 5), (1, 1)])
def test_the_first_steps_are_the_solvers_and_the_last_newtons(num_steps, newton_steps):
    first, newton = solvers()
    states = states_of(Newton(after=first, num_steps=newton_steps), OBJECTIVE, START, num_steps)
    ahead = states_of(first, OBJECTIVE, START, max(num_steps - newton_steps, 0))
    after = states_of(newton, OBJECTIVE, ahead[-1].y, min(num_steps, newton_steps))
    for state, expected in zip(states, ahead[:-1] + after, strict=True):
        assert torch.equal(state.y, expected.y)
        assert torch.equal(state.point, expected.point)
    for state, expected in zip(states[1:], ahead[1:] + after[1:], strict=True):
        assert torch.equal(state.gradient, expected.gradient)


SETS = make_sets((3, 5, 8, 2))


def plain_layer(seed):
    return make_layer(hidden=(16, 8), learning_rate=0.1, momentum=0.8, num_steps=57, seed=seed)


@cache
def near_seed():
    """Of a layer that comes near its minima in 57 steps, and not to them: an energy of random
    weights may take the search anywhere."""

    @torch.no_grad()
    def suits(seed):
        residual = plain_layer(seed).solve(*flatten(SETS)).residual
        return bool(residual.min() > 1e-8 and 1e-6 < residual.max() < 1e-3)

    return first_seed(suits)


def polished_layer(num_steps):
    layer = plain_layer(near_seed())
    layer.solver, layer.steps = Newton(after=layer.solver), num_steps
    return layer


def test_polishing_finds_the_digits():
    x, index = flatten(SETS)
    with torch.no_grad():
        layer = polished_layer(60)
        polished = layer.solve(x, index)
        layer.solver = layer.solver.after
        plain = layer.solve(x, index)
    assert polished.residual.max() < 1e-12 < 1e-6 < plain.residual.max()


@pytest.mark.parametrize("grad", [False, True])
def test_solved_to_a_tolerance_the_last_steps_are_still_newtons(grad):
    """With a few first-order steps none converges; what then does, converges by polishing."""
    x, index = flatten(SETS)
    layer = polished_layer(1)
    layer.steps = ToTolerance(1e-10, 60)
    with torch.set_grad_enabled(grad):
        solution = layer.solve(x, index)
    assert bool(solution.converged.all())
    assert solution.num_steps.min() > 57


def test_further_steps_keep_what_the_solver_found_out():
    solver = Newton(after=SafeguardedNesterov(100.0), num_steps=2)
    state = states_of(solver, OBJECTIVE, START, 20)[-1]
    rest = solver.at_rest(state, state.y, 5, OBJECTIVE)
    assert torch.equal(rest.first.size, state.first.size)
    assert rest.first_steps == 3
    assert torch.equal(rest.y, state.y)
