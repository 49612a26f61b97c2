import pytest
import torch

from equipool import EquilibriumAggregation, LearnedStart, Nesterov, ZeroStart
from equipool.baselines import MeanPooling
from equipool.models import equilibrium_network, pooling_network

BUILDERS = {
    "pooling": lambda: pooling_network(MeanPooling(4, 4), 4, width=8, head_width=16),
    "equilibrium": lambda: equilibrium_network(4, width=8, head_width=16),
}


@pytest.fixture(params=BUILDERS)
def network(request):
    torch.manual_seed(0)
    return BUILDERS[request.param]()


def linear_sizes(module):
    return [m.out_features for m in module.modules() if isinstance(m, torch.nn.Linear)]


def test_a_number_for_each_set_whatever_the_order(network):
    x = torch.rand(3, 10)
    assert network(x).shape == (3,)
    order = torch.randperm(10)
    torch.testing.assert_close(network(x[:, order]), network(x), rtol=1e-4, atol=1e-5)


def test_every_parameter_is_trained(network):
    network(torch.rand(8, 10)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_layer_sizes_are_the_papers():
    rival, ours = pooling_network(MeanPooling(16, 16), 16), equilibrium_network(16)
    assert [m.out_features for m in rival.embedding.linears] == [256, 256, 16]
    assert [m.in_features for m in rival.embedding.linears] == [1, 256, 256]
    assert linear_sizes(rival.head) == linear_sizes(ours.head) == [128, 1]
    potential = ours.aggregation.potential
    assert [m.out_features for m in potential.linears] == [256, 256, 1]
    assert potential.linears[0].in_features == 17


def test_settings_reach_the_layer():
    layer = equilibrium_network(
        4,
        width=8,
        potential_output=3,
        num_steps=7,
        learning_rate=0.02,
        momentum=0.5,
        start_value=1.0,
        regularizer_weight=0.3,
    ).aggregation
    assert isinstance(layer, EquilibriumAggregation)
    assert layer.potential.hidden == (8, 8, 3)
    assert (layer.in_channels, layer.out_channels, layer.num_steps) == (1, 4, 7)
    assert layer.solver.learning_rate.item() == pytest.approx(0.02)
    assert layer.solver.momentum.item() == pytest.approx(0.5)
    assert layer.regularizer.weight.item() == pytest.approx(0.3)
    assert isinstance(layer.start, LearnedStart)
    assert layer.start.value == 1.0


def test_the_start_is_zero_unless_a_value_is_given():
    assert isinstance(equilibrium_network(4).aggregation.start, ZeroStart)
    start = equilibrium_network(4, start_value=0.0).aggregation.start
    assert isinstance(start, LearnedStart)


def test_unrestrained_it_is_the_papers_solver():
    torch.manual_seed(0)
    network = equilibrium_network(4, width=16)
    x = torch.rand(3, 10)
    found = network(x)
    network.aggregation.solver = Nesterov()
    assert torch.equal(found, network(x))


def test_a_restrained_search_stays_near_its_start():
    torch.manual_seed(0)
    free, held = (equilibrium_network(4, width=16, max_step=s) for s in (None, 0.1))
    x = 1e-3 * torch.rand(3, 10, 1)
    assert free.aggregation(x).norm(dim=-1).max() > 1
    assert held.aggregation(x).norm(dim=-1).max() <= 0.5001
