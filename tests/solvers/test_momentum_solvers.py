"""One step at a time, on energies whose gradient is known."""

import pytest
import torch
from energies import states_of

from equipool import GradientDescent, Nesterov

CURVATURE = torch.tensor([[0.5, 2.0], [1.0, 4.0]])
CENTER = torch.tensor([[1.0, -1.0], [3.0, 0.5]])


def gradient(y):
    return CURVATURE * (y - CENTER)


class Bowl:
    """The energy with that gradient, as far as these solvers look at it."""

    gradient = staticmethod(gradient)


def path_of(solver, num_steps, y=None):
    return states_of(solver, Bowl(), torch.zeros_like(CENTER) if y is None else y, num_steps)


@pytest.mark.parametrize(("kind", "ahead"), [(Nesterov, 1), (GradientDescent, 0)])
def test_steps_by_the_formula(kind, ahead):
    rate, mu = 0.1, 0.75
    y, v = torch.zeros_like(CENTER), torch.zeros_like(CENTER)
    for state in path_of(kind(rate, mu), 6)[1:]:
        g = gradient(y + ahead * mu * v)
        v = mu * v - rate * g
        y = y + v
        torch.testing.assert_close(state.gradient, g)
        torch.testing.assert_close(state.velocity, v)
        torch.testing.assert_close(state.y, y)
