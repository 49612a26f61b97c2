"""The adapter as an aggregation: the call, the shapes, the errors, the parts."""

import importlib
import inspect
import sys

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.nn import aggr

import equipool
from cases import assert_near, flatten, make_sets, offsets
from equipool.pyg import EquilibriumAggregation

HIDDEN = (7, 5, 3)


@pytest.fixture
def aggregation():
    torch.manual_seed(0)
    potential = equipool.ResNetPotential(3, 4, HIDDEN)
    return EquilibriumAggregation(3, 4, potential=potential, steps=5).double()


def test_is_an_aggregation_of_the_same_construction():
    ours, core = EquilibriumAggregation, equipool.EquilibriumAggregation
    assert issubclass(ours, aggr.Aggregation)
    assert inspect.signature(ours) == inspect.signature(core)
    base = list(inspect.signature(aggr.Aggregation.forward).parameters)
    assert list(inspect.signature(ours.forward).parameters)[: len(base)] == base


def test_the_adapter_is_the_layer(aggregation):
    """So its weights load both ways, and whatever takes a layer takes it."""
    core = equipool.EquilibriumAggregation(
        3, 4, potential=equipool.ResNetPotential(3, 4, HIDDEN), steps=5
    ).double()
    assert isinstance(aggregation, equipool.EquilibriumAggregation)
    core.load_state_dict(aggregation.state_dict())
    aggregation.load_state_dict(core.state_dict())
    x = torch.randn(5, 3).double()
    assert torch.equal(core(x), aggregation(x))


def test_diagnostics_accept_the_adapter():
    """With the answers that the plain layer gets, in layouts of the adapter and of the layer."""
    x, sizes = torch.randn(2, 4, 3).double(), torch.tensor([3, 4])
    mask = torch.arange(4) < sizes[:, None]
    potential = equipool.ConvexPotential(3, 4, (6,))
    parts = {"potential": potential, "steps": equipool.ToTolerance(1e-3, 500)}
    aggregation, core = (
        kind(3, 4, **parts).double().eval()
        for kind in (EquilibriumAggregation, equipool.EquilibriumAggregation)
    )
    for elements, layout in ((x, {"mask": mask}), (x[mask], {"ptr": torch.tensor([0, 3, 7])})):
        for question, answer in ((equipool.influence, "change"), (equipool.laplace, "covariance")):
            found, expected = (
                getattr(question(each, elements, **layout), answer) for each in (aggregation, core)
            )
            assert torch.equal(found, expected)
        exact = {"exact": equipool.Unrolled()}
        assert equipool.diagnostics.compare_gradients(
            aggregation, elements, **layout, methods=exact
        )


# What PyTorch Geometric's tests of its own layer ask for.


def test_shapes():
    x, batch = torch.randn(6, 16), torch.tensor([0, 1, 1, 1, 1, 1])
    model = EquilibriumAggregation(16, 2, steps=1)
    for out, sets in ((model(x), 1), (model(x, batch), 2), (model(x, dim_size=3), 3)):
        assert out.shape == (sets, 2)
    for index, dim_size in ((None, 0), (batch, 1)):
        with pytest.raises(ValueError, match=f"expected values below {dim_size}"):
            model(x, index, dim_size=dim_size)


@pytest.mark.parametrize("num_sets", [0, 3])
def test_a_batch_without_elements(aggregation, num_sets):
    x, index = torch.zeros(0, 3).double(), torch.zeros(0, dtype=torch.long)
    assert torch.equal(aggregation(x, index, dim_size=num_sets), torch.zeros(num_sets, 4).double())
    ptr = torch.zeros(num_sets + 1, dtype=torch.long)
    assert torch.equal(aggregation(x, ptr=ptr), torch.zeros(num_sets, 4).double())
    # without an index PyTorch Geometric takes the sets from the elements: there are none
    assert aggregation(x).shape == (0, 4) == (len(aggr.SumAggregation()(x)), 4)


# The layouts.


def test_equals_the_layer_in_every_layout(aggregation):
    sets = make_sets([3, 0, 1, 6, 0])
    x, index = flatten(sets)
    ptr = offsets(sets)
    order = torch.randperm(len(x))
    expected = torch.cat([aggregation(x, dim_size=1) for x in sets])
    assert expected.any()
    for found in (
        aggregation(x, ptr=ptr),
        aggregation(x, ptr=ptr, dim_size=5),
        aggregation(x, index, dim_size=5),
        aggregation(x[order], index[order], dim_size=5),
        aggregation(x, index.int(), None, 5, -2),
        aggregation(x, index, dim_size=5, dim=0, max_num_elements=6),
        aggregation(x, index, ptr=ptr, dim_size=5),
        aggregation(x, 0 * index, ptr),  # of both, ptr is read
    ):
        assert_near(found, expected, 1e-12)


def test_index_may_be_half_of_an_edge_index(aggregation):
    edges = torch.tensor([[0, 1, 2, 0], [0, 0, 1, 2]])
    index, x = EdgeIndex(edges, sparse_size=(3, 3), sort_order="col")[1], torch.randn(4, 3).double()
    assert type(index) is not torch.Tensor
    assert torch.equal(aggregation(x, index), aggregation(x, edges[1]))


@pytest.mark.parametrize(("shape", "dim"), [((2, 7, 3), -2), ((2, 5, 7, 3), 2), ((7, 2, 3), 0),
                                            ((4, 7, 2, 3), 1), ((0, 7, 3), -2)])  # fmt: skip
def test_further_dimensions_hold_independent_sets(aggregation, shape, dim):
    x = torch.randn(shape).double()
    index = torch.tensor([2, 0, 2, 0, 0, 3, 2])
    found = aggregation(x, index, dim_size=5, dim=dim)
    expected_shape = list(shape)
    expected_shape[dim], expected_shape[-1] = 5, 4
    assert list(found.shape) == expected_shape
    one_by_one = zip(
        found.movedim(dim, -2).reshape(-1, 5, 4), x.movedim(dim, -2).reshape(-1, 7, 3), strict=True
    )
    for y, elements in one_by_one:
        assert_near(y, aggregation(elements, index, dim_size=5), 1e-12)
    ordered, ptr = x.index_select(dim, index.argsort(stable=True)), torch.tensor([0, 3, 3, 6, 7, 7])
    assert_near(aggregation(ordered, ptr=ptr, dim=dim), found, 1e-12)


# The errors.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"index": torch.tensor([0, 1])}, ValueError, r"index has shape \[2\], expected \[4\]"),
        ({"index": torch.zeros(4).long(), "dim_size": 2.0}, TypeError, "dim_size is 2.0"),
        ({"dim": -1}, ValueError, "dim is -1 and x has shape"),
        ({"dim": 5}, ValueError, "dim is 5 and x has shape"),
    ],
)
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)])
def test_errors_reach_the_caller(aggregation, arguments, error, message, shape):
    x = torch.randn(shape).double()
    with pytest.raises(error, match=message):
        aggregation(x, **arguments)
    with pytest.raises(ValueError, match="x has 2 channels, expected in_channels = 3"):
        aggregation(x[..., :2], torch.zeros(4).long())


def test_an_error_inside_a_potential_reaches_the_caller():
    class Broken(torch.nn.Module):
        def forward(self, x, y):
            raise IndexError("this is why")

    with pytest.raises(IndexError, match="this is why"):
        EquilibriumAggregation(3, 4, potential=Broken())(torch.randn(5, 3))


def test_without_pytorch_geometric_the_import_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "equipool.pyg")
    monkeypatch.setitem(sys.modules, "torch_geometric.nn.aggr", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'equipool\[pyg\]'"):
        importlib.import_module("equipool.pyg")
