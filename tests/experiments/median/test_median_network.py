import pytest
import torch

from equipool import Nesterov
from equipool.baselines import MeanPooling
from equipool.experiments.inner_loop import InnerLoop
from equipool.experiments.median.network import equilibrium_network, pooling_network
from equipool.experiments.registry import MedianTask


def ours(hidden=(256, 256, 1), out_channels=4, head_width=128, num_steps=5, **settings):
    layer = InnerLoop(**settings).equilibrium_layer(1, out_channels, hidden, num_steps)
    return equilibrium_network(layer, head_width)


BUILDERS = {
    "pooling": lambda: pooling_network(MeanPooling(4, 4), 4, width=8, head_width=16),
    "equilibrium": lambda: ours((8, 8, 1), head_width=16),
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
    rival, own = (MedianTask.paper(name, embedding=16).network() for name in ("sum", "equilibrium"))
    assert [m.out_features for m in rival.embedding.linears] == [256, 256, 16]
    assert [m.in_features for m in rival.embedding.linears] == [1, 256, 256]
    assert linear_sizes(rival.head) == linear_sizes(own.head) == [128, 1]
    potential = own.aggregation.potential
    assert [m.out_features for m in potential.linears] == [256, 256, 1]
    assert potential.linears[0].in_features == 17


def test_the_head_reads_what_the_layer_pools():
    network = ours((8, 8, 1), out_channels=6, head_width=16)
    assert [(m.in_features, m.out_features) for m in network.head[::2]] == [(6, 16), (16, 1)]


def test_unrestrained_it_is_the_papers_solver():
    torch.manual_seed(0)
    network = ours((16, 16, 1))
    x = torch.rand(3, 10)
    found = network(x)
    network.aggregation.solver = Nesterov()
    assert torch.equal(found, network(x))


def test_a_restrained_search_stays_near_its_start():
    torch.manual_seed(0)
    free, held = (
        ours((16, 16, 1), solver={"name": "restrained-nesterov", "max_step": longest})
        for longest in (None, 0.1)
    )
    x = 1e-3 * torch.rand(3, 10, 1)
    assert free.aggregation(x).norm(dim=-1).max() > 1
    assert held.aggregation(x).norm(dim=-1).max() <= 0.5001
