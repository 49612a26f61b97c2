import pytest
import torch

from equipool import EquilibriumAggregation
from equipool.demo.models import (
    Sizes,
    equilibrium_network,
    num_parameters,
    sum_network,
)
from equipool.demo.task import sample_sets

SMALL = Sizes(width=8, channels=3, potential_outputs=2, inner_steps=2, head_width=32)


@pytest.fixture
def x():
    return sample_sets(4, torch.Generator().manual_seed(0))[0]


@pytest.mark.parametrize("build", [equilibrium_network, sum_network])
def test_a_prediction_for_each_set_whatever_the_order_of_its_numbers(build, x):
    network = build(SMALL)
    order = torch.randperm(x.shape[1])
    assert network(x).shape == (4,)
    torch.testing.assert_close(network(x[:, order]), network(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("build", [equilibrium_network, sum_network])
def test_every_parameter_is_trained(build, x):
    network = build(SMALL)
    network(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_sum_pooling_sums_and_does_not_average(x):
    pooling = sum_network(SMALL).pooling
    torch.testing.assert_close(pooling(x.repeat(1, 2, 1)), 2 * pooling(x))


def test_sum_pooling_starts_at_the_size_of_one_embedding(x):
    pooling = sum_network(SMALL).pooling
    torch.testing.assert_close(pooling(x), pooling[0](x).mean(1))


def test_sizes_reach_the_layer():
    layer = equilibrium_network(SMALL).pooling
    assert isinstance(layer, EquilibriumAggregation)
    assert (layer.in_channels, layer.out_channels, layer.num_steps) == (1, 3, 2)
    assert layer.potential.hidden == (8, 8, 2)


def test_the_default_networks_are_of_about_the_same_size():
    ours, theirs = (
        num_parameters(equilibrium_network(Sizes())),
        num_parameters(sum_network(Sizes())),
    )
    assert 0.8 < ours / theirs < 1.25
