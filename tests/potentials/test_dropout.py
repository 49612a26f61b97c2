"""Hidden units of the potential that are dropped in training, and other random numbers in it."""

import pytest
import torch

from equipool import EquilibriumAggregation, ResNetPotential
from equipool.potentials import resnet

SEED = 3


def thinned_layer(hidden=(9, 9, 5, 3), dropout=0.5, factored=True, num_steps=4):
    """With an identity skip and learned ones."""
    torch.manual_seed(0)
    potential = ResNetPotential(3, 4, hidden, factored=factored, dropout=dropout)
    return EquilibriumAggregation(3, 4, potential=potential, steps=num_steps).double()


def called(layer, x, *given):
    torch.manual_seed(SEED)
    return layer(x, *given)


@pytest.mark.parametrize("hidden", [(9, 9, 5, 3), (7, 7, 4), (6,)])
def test_the_fast_gradient_is_that_of_the_same_units(hidden):
    """One path scales the weights and the other what they are applied to."""
    x = torch.randn(6, 3, dtype=torch.float64)
    index = torch.tensor([0, 0, 1, 1, 1, 2])
    found = []
    for factored in (True, False):
        layer = thinned_layer(hidden, factored=factored)
        y = called(layer, x, index)
        gradients = torch.autograd.grad(y.sin().sum(), list(layer.potential.parameters()))
        found.append([y, *gradients])
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-11)


def test_units_are_dropped_in_training_alone():
    x = torch.randn(6, 3, dtype=torch.float64)
    layer = thinned_layer()
    whole = thinned_layer(dropout=0.0)
    assert not torch.allclose(called(layer, x), whole(x))
    assert not torch.allclose(layer(x), layer(x))  # others in the next call
    torch.testing.assert_close(layer.eval()(x), whole(x), rtol=0, atol=0)


@pytest.mark.parametrize("factored", [True, False])
def test_all_steps_have_the_same_units(monkeypatch, factored):
    drawn = []
    plain = torch.nn.functional.dropout

    def dropout(units, share):
        drawn.append((units.numel(), share))
        return plain(units, share)

    monkeypatch.setattr(resnet.functional, "dropout", dropout)
    thinned_layer(factored=factored, num_steps=7)(torch.randn(6, 3, dtype=torch.float64))
    assert drawn == [(9, 0.5), (9, 0.5), (5, 0.5)]


def test_all_sets_have_the_same_units():
    one, other = torch.randn(2, 5, 3, dtype=torch.float64)
    layer = thinned_layer()
    first, second, third = called(layer, torch.stack([one, other, one.flip(0)]))
    torch.testing.assert_close(first, third)
    torch.testing.assert_close(called(layer, other[None])[0], second)


class Doubled(ResNetPotential):
    def forward(self, x, y):
        return 2 * super().forward(x, y)


@pytest.mark.parametrize("changed", ["forward", "hook"])
def test_a_forward_of_ones_own_or_a_hook_has_no_units_to_drop(changed):
    potential = (Doubled if changed == "forward" else ResNetPotential)(3, 4, (7, 5, 3), dropout=0.5)
    if changed == "hook":
        potential.register_forward_hook(lambda module, args, output: 2 * output)
    layer = EquilibriumAggregation(3, 4, potential=potential)
    with pytest.raises(ValueError, match=r"dropout is 0\.5, expected 0 with a forward of your own"):
        layer(torch.randn(6, 3))
    assert layer.eval()(torch.randn(6, 3)).isfinite().all()


class Random(torch.nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.linear, self.noise = torch.nn.Linear(7, 9), noise

    def forward(self, x, y):
        return self.noise(self.linear(torch.cat([x, y], -1))).square().sum(-1)


@pytest.mark.parametrize(
    "noise", [torch.nn.functional.dropout, lambda units: units + torch.randn_like(units)]
)
def test_a_potential_that_is_random_is_refused(noise):
    layer = EquilibriumAggregation(3, 4, potential=Random(noise))
    for call in (layer, layer.solve):
        with pytest.raises(ValueError, match="Random draws random numbers"):
            call(torch.randn(6, 3))


def test_numbers_that_others_draw_meanwhile_are_no_noise():
    potential = Random(torch.nn.Identity())
    potential.linear.register_forward_hook(lambda *call: torch.rand(1) and None)
    assert EquilibriumAggregation(3, 4, potential=potential)(torch.randn(6, 3)).isfinite().all()


class Own(torch.nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Softplus(), drop)

    def forward(self, x, y):
        return self.net(torch.cat([x, y], -1)).square().sum(-1)


def resnet_with_dropout():
    potential = ResNetPotential(3, 4, (7, 5, 3))
    potential.linears[0] = torch.nn.Sequential(potential.linears[0], torch.nn.Dropout(0.5))
    return potential


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: Own(torch.nn.Dropout(0.5)), "net.2"),
        (lambda: Own(torch.nn.AlphaDropout(0.5)), "net.2"),
        (resnet_with_dropout, "linears.0.1"),
    ],
)
def test_a_module_that_would_drop_other_units_at_each_step_is_refused(make, where):
    layer = EquilibriumAggregation(3, 4, potential=make())
    x = torch.randn(6, 3)
    for call in (layer, layer.solve, layer.energy):
        with pytest.raises(ValueError, match="each step") as told:
            call(x)
        assert f"potential.{where} is " in str(told.value)
    y = layer.eval()(x)
    assert torch.equal(layer(x), y)
    layer.train()
    layer.potential.get_submodule(where).p = 0.0
    torch.testing.assert_close(layer(x), y)
