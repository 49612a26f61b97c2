"""Another solver's steps, then Newton's."""

import pytest
import torch
from energies import random_rugged, states_of

from cases import Quadratic, flatten, make_sets
from equipool import EquilibriumAggregation, Nesterov, ToTolerance
from equipool.solvers import Newton

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


def test_solved_to_a_tolerance_the_last_steps_are_still_newtons():
    """With the first-order steps none converges; what then does, converges by polishing."""
    solver = Newton(after=Nesterov(1e-3, 0.5), num_steps=2)
    layer = EquilibriumAggregation(
        3, 3, potential=Quadratic(), solver=solver, steps=ToTolerance(1e-10, 20)
    ).double()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            solution = layer.solve(*flatten(make_sets((3, 5, 8))))
        assert solution.converged.all()
        assert (solution.num_steps == 20).all()
