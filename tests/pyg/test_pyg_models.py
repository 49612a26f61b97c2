"""The adapter inside graph networks: as readout, in convolutions, beside other aggregations."""

import copy

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv, aggr
from torch_geometric.nn.aggr import MultiAggregation

import equipool
from cases import assert_near
from equipool.pyg import EquilibriumAggregation

NUM_NODES = 9
ISOLATED = [4, 8]  # no edge leads to them
CHANNELS = 6


def make_aggregation(in_channels=CHANNELS, out_channels=CHANNELS):
    potential = equipool.ResNetPotential(in_channels, out_channels, (8, 5))
    return EquilibriumAggregation(in_channels, out_channels, potential=potential, steps=4)


@pytest.fixture
def graph():
    """Nodes `[9, 6]` and edges in no order, some nodes without a neighbour."""
    torch.manual_seed(0)
    targets = torch.tensor([i for i in range(NUM_NODES) if i not in ISOLATED])
    edges = torch.stack([torch.randint(NUM_NODES, (40,)), targets[torch.randint(7, (40,))]])
    edges = edges.unique(dim=1)
    return torch.randn(NUM_NODES, CHANNELS).double(), edges[:, torch.randperm(edges.shape[1])]


class PlainConv(MessagePassing):
    """Messages are the neighbours' features, as they are."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return x_j


def pool_neighbours(layer, x, edge_index):
    """What a plain convolution with this aggregation gives, one node at a time."""
    return torch.cat(
        [layer(x[edge_index[0, edge_index[1] == i]], dim_size=1) for i in range(NUM_NODES)]
    )


def test_a_plain_convolution(graph):
    aggregation = make_aggregation(CHANNELS, 3).double()
    conv = PlainConv(aggr=aggregation)
    assert conv.aggr_module is aggregation
    found = conv(*graph)
    assert_near(found, pool_neighbours(aggregation, *graph), 1e-12)
    assert not found[ISOLATED].any()
    assert found.any(-1).sum() == NUM_NODES - len(ISOLATED)


CONVOLUTIONS = {
    "gcn": lambda: GCNConv(CHANNELS, CHANNELS, aggr=make_aggregation()),
    "gin": lambda: GINConv(torch.nn.Linear(CHANNELS, CHANNELS), aggr=make_aggregation()),
    "gat": lambda: GATConv(CHANNELS, 3, heads=2, aggr=make_aggregation(3, 3)),
    "several": lambda: SAGEConv(
        CHANNELS, CHANNELS, aggr=MultiAggregation(["mean", make_aggregation(), "max"])
    ),
}


@pytest.fixture(params=list(CONVOLUTIONS))
def conv(request):
    torch.manual_seed(1)
    return CONVOLUTIONS[request.param]().double()


def test_a_graph_is_computed_alone_as_beside_another(conv, graph):
    x, edges = graph
    other = torch.randn(5, CHANNELS).double()
    other_edges = torch.tensor([[0, 1, 1, 1, 4], [0, 0, 1, 2, 2]])
    both = conv(torch.cat([x, other]), torch.cat([edges, other_edges + NUM_NODES], 1))
    assert_near(both[:NUM_NODES], conv(x, edges), 1e-12)
    assert_near(both[NUM_NODES:], conv(other, other_edges), 1e-12)


@pytest.mark.parametrize("sort_order", ["col", None])
def test_an_edge_index_that_knows_its_order(conv, graph, sort_order):
    x, edges = graph
    expected = conv(x, edges)
    if sort_order is not None:
        edges = edges[:, edges[1].argsort(stable=True)]
    size = (NUM_NODES, NUM_NODES)
    assert_near(conv(x, EdgeIndex(edges, sparse_size=size, sort_order=sort_order)), expected, 1e-12)


def test_a_graph_without_edges(conv, graph):
    x, edges = graph[0], torch.zeros(2, 0, dtype=torch.long)
    out = conv(x, edges)
    assert out.shape == (NUM_NODES, CHANNELS)
    assert out.isfinite().all()


def test_every_parameter_learns(conv, graph):
    x, edges = graph
    x.requires_grad_()
    conv(x, edges).square().sum().backward()
    parameters = {name: p.grad for name, p in conv.named_parameters()} | {"x": x.grad}
    assert [name for name, grad in parameters.items() if grad is None] == []
    assert all(grad.isfinite().all() for grad in parameters.values())
    assert x.grad.any()


def test_copies_and_reset(conv, graph):
    expected = conv(*graph)
    assert torch.equal(copy.deepcopy(conv)(*graph), expected)
    conv.reset_parameters()
    assert not torch.allclose(conv(*graph), expected)


def test_decomposed_layers_pool_parts_of_the_channels(graph):
    x, edges = graph
    aggregation = make_aggregation(CHANNELS // 2, CHANNELS // 2)
    conv = PlainConv(aggr=aggregation, decomposed_layers=2).double()
    parts = [pool_neighbours(aggregation, part, edges) for part in x.chunk(2, -1)]
    assert_near(conv(x, edges), torch.cat(parts, -1), 1e-12)


# As one aggregation of several.


def test_in_a_multi_aggregation(graph):
    x, index = graph[0], torch.tensor([3, 0, 0, 3, 1, 0, 1, 1, 0])
    equilibrium, std = make_aggregation().double(), aggr.StdAggregation()
    several = MultiAggregation(["mean", equilibrium, std])
    each = (aggr.MeanAggregation(), equilibrium, std)
    parts = [one(x, index, dim_size=5) for one in each]
    assert_near(several(x, index, dim_size=5), torch.cat(parts, -1), 1e-12)


# As readout.
