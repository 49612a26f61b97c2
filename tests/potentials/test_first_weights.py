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
