"""What happens when a user changes the layer's parts."""

import pytest
import torch
from torch import nn

from cases import make_layer
from equipool import EquilibriumAggregation, LearnedStart, Nesterov, ResNetPotential


class Doubled(ResNetPotential):
    def forward(self, x, y):
        return 2 * super().forward(x, y)


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def agrees_with_automatic_differentiation(layer, x):
    found = layer(x)
    layer.potential.factored = False
    torch.testing.assert_close(found, layer(x), rtol=1e-10, atol=1e-12)


def test_a_potential_with_a_forward_of_its_own_is_differentiated_as_it_is():
    potential = Doubled(3, 4, (7, 5, 3)).double()
    layer = EquilibriumAggregation(3, 4, potential=potential).double()
    agrees_with_automatic_differentiation(layer, torch.randn(6, 3).double())


@pytest.mark.parametrize("part", ["linears", "skips"])
def test_a_replaced_layer_is_differentiated_as_it_is(part):
    layer = make_layer()
    old = getattr(layer.potential, part)[1]
    getattr(layer.potential, part)[1] = Shifted(old.in_features, old.out_features).double()
    agrees_with_automatic_differentiation(layer, torch.randn(6, 3).double())


def test_a_parametrized_layer_keeps_the_fast_gradient_and_is_right():
    layer = make_layer()
    nn.utils.parametrizations.weight_norm(layer.potential.linears[0])
    agrees_with_automatic_differentiation(layer, torch.randn(6, 3).double())


def test_backward_inside_autocast():
    layer = make_layer(dtype=torch.float32)
    x = torch.randn(6, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    inside = [x.grad, *(p.grad for p in layer.potential.parameters())]
    x.grad = None
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.sum().backward()
    for a, b in zip(inside, [x.grad, *(p.grad for p in layer.potential.parameters())], strict=True):
        assert (a - b).norm() <= 0.05 * b.norm()


def test_scalars_are_exact_in_every_precision():
    assert Nesterov(0.1).double().learning_rate == 0.1
    assert Nesterov(0.1).bfloat16().learning_rate == torch.tensor(0.1)


def test_hooks_are_not_passed_by():
    layer = make_layer()
    layer.potential.linears[0].register_forward_hook(lambda module, args, output: output + 1)
    agrees_with_automatic_differentiation(layer, torch.randn(6, 3).double())


def test_scaling_is_checked_when_it_is_changed():
    with pytest.raises(ValueError, match="scaling is 'max', expected one of"):
        make_layer().scaling = "max"


def test_autocast_does_not_bring_float64_and_float32_together():
    layer = make_layer(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="x has dtype"):
        layer(torch.randn(4, 3).double())


def test_scalars_return_after_memory_was_handed_out_anew():
    """As in deferred initialisation: built on the meta device, given memory, then reset."""
    with torch.device("meta"):
        layer = EquilibriumAggregation(3, 4, solver=Nesterov(0.3, 0.8))
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.solver.learning_rate == torch.tensor(0.3)
    assert layer.solver.momentum == torch.tensor(0.8)
    assert torch.isfinite(layer(torch.randn(5, 3))).all()


def test_a_start_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"start's out_channels is 3, expected 4"):
        EquilibriumAggregation(3, 4, start=LearnedStart(3))
