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


@pytest.mark.parametrize("kind", [Nesterov, GradientDescent])
def test_gtol_freezes_y_row_by_row_while_momentum_goes_on(kind):
    start = CENTER + torch.tensor([[0.1, 0.01], [0.1, 0.4]])  # largest gradients 0.05 and 1.6
    before, after = path_of(kind(0.1, 0.8, gtol=0.06), 1, start)
    assert torch.equal(after.y[0], before.y[0])
    assert not torch.equal(after.y[1], before.y[1])
    torch.testing.assert_close(after.velocity, -0.1 * gradient(start))


def test_a_frozen_row_moves_again_with_the_momentum_it_gathered():
    """The look-ahead leaves the frozen y, and with so large a step its gradient grows over gtol."""
    start = CENTER + torch.tensor([[0.0, 0.02], [0.0, 0.0]])  # largest gradient 0.04
    ys = torch.stack([s.y for s in path_of(Nesterov(1.2, 0.9, gtol=0.06), 8, start)])
    moves = ys.diff(dim=0).abs().amax(-1) > 0
    assert not moves[0, 0]
    assert moves[:, 0].any()
    assert not moves[:, 1].any()


def test_clip_keeps_every_component_within():
    states = path_of(Nesterov(0.3, 0.8, clip_value=0.7), 30)
    assert all(state.y.abs().max() <= 0.7 for state in states)
    torch.testing.assert_close(states[-1].y, CENTER.clamp(-0.7, 0.7))
