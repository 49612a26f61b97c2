"""Gradients at the initial weights, and the sizes of the default potential."""

import warnings

import pytest
import torch

from equipool import EquilibriumAggregation, ResNetPotential

SIZES = [(16, 16), (3, 8), (1, 2), (8, 1)]


def ordinary_inputs(channels):
    """Batches of one set that a network may well see, by name, each with its scale."""
    x = torch.randn(12, channels)
    yield "zeros", torch.zeros(12, channels), 1
    yield "one zero", torch.zeros(1, channels), 1
    yield "constant", torch.ones(12, channels), 1
    yield "one element", x[:1], 1
    yield "relu features", torch.relu(x - 1), 1
    for scale in (1e-3, 1, 1e3):
        yield f"values of {scale}", scale * x, max(scale, 1)


def gradient_norm(layer, x):
    layer.zero_grad()
    x = x.clone().requires_grad_()
    readout = torch.randn(layer.out_channels)
    (layer(x) @ readout).sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("in_channels", "out_channels"), SIZES)
def test_no_ordinary_input_has_an_enormous_gradient(in_channels, out_channels, seed):
    """With zero biases the gradient at zero vectors is NaN, and 1e9 at relu features."""
    torch.manual_seed(seed)
    layer = EquilibriumAggregation(in_channels, out_channels)
    for name, x, scale in ordinary_inputs(in_channels):
        assert gradient_norm(layer, x) < 1e6 * scale, name


def test_zero_vectors_need_the_biases():
    """The test above can fail."""
    torch.manual_seed(0)
    layer = EquilibriumAggregation(16, 16, potential=ResNetPotential(16, 16, bias_std=0.0))
    assert not gradient_norm(layer, torch.zeros(12, 16)) < 1e6


def test_zero_biases_draw_no_random_numbers():
    """Weights drawn with `bias_std=0.0` are those of runs that were made before there was one."""
    torch.manual_seed(0)
    potential = ResNetPotential(3, 4, (7, 5, 3), bias_std=0.0)
    linears = [m for m in potential.modules() if isinstance(m, torch.nn.Linear)]
    assert all(not linear.bias.any() for linear in linears)
    torch.manual_seed(0)
    for linear in linears:  # building the layers draws, too
        torch.nn.Linear(linear.in_features, linear.out_features)
    for linear in linears:
        std = linear.in_features**-0.5
        weight = torch.empty_like(linear.weight)
        torch.nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
        assert torch.equal(linear.weight, weight)


def test_biases_have_the_deviation_that_was_given():
    potential = ResNetPotential(64, 64, bias_std=0.5)
    biases = [m.bias for m in potential.modules() if isinstance(m, torch.nn.Linear)]
    drawn = torch.cat([bias.detach() for bias in biases])
    assert abs(float(drawn.std()) - 0.5) < 5 * 0.5 / (2 * len(drawn)) ** 0.5


@pytest.mark.parametrize("out_channels", [1, 2, 7, 8, 40])
def test_default_sizes_have_a_floor_and_the_last_layer_may_be_small(out_channels):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hidden = ResNetPotential(3, out_channels).hidden
        ResNetPotential(3, out_channels, (16, 16, 1))  # not normalised
    assert min(hidden) >= 16
    if out_channels >= 16:
        assert hidden == (2 * out_channels, out_channels, 32)


@pytest.mark.parametrize("hidden", [(1, 4), (8, 2, 4), (2, 1, 32)])
def test_normalised_layers_of_one_or_two_units_warn(hidden):
    with pytest.warns(UserWarning, match="16 or more for all but the last"):
        ResNetPotential(3, 4, hidden)


@pytest.mark.parametrize("bias_std", [0.0, 0.3])
def test_layers_without_a_bias_are_drawn_again(bias_std):
    potential = ResNetPotential(3, 4, (7, 5, 3), bias_std=bias_std)
    potential.linears[0] = torch.nn.Linear(7, 7, bias=False)
    before = potential.linears[0].weight.detach().clone()
    potential.reset_parameters()
    assert not torch.equal(potential.linears[0].weight, before)
    assert potential.linears[0].bias is None
    assert bool(potential.linears[1].bias.any()) == (bias_std > 0)
