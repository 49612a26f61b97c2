"""Locations, medians and quantiles as aggregations of PyTorch Geometric."""

import inspect

import pytest
import torch
from torch_geometric.nn import MultiAggregation, SAGEConv, aggr

import equipool
from cases import assert_near
from equipool.pyg import LocationAggregation, MedianAggregation, QuantileAggregation

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
INDEX = torch.arange(4).repeat_interleave(torch.tensor([25, 1, 30, 4]))
EDGES = torch.tensor([[0, 1, 2, 5, 5], [1, 2, 1, 0, 3]])


@pytest.fixture
def location():
    torch.manual_seed(0)
    return LocationAggregation(3, 4)


def test_location_is_the_pooling_as_an_aggregation(location):
    ours, core = LocationAggregation, equipool.LocationPooling
    assert issubclass(ours, aggr.Aggregation)
    assert issubclass(ours, core)
    assert inspect.signature(ours) == inspect.signature(core)
    assert repr(location) == "LocationAggregation(3, 4)"
    plain = core(3, 4)
    plain.load_state_dict(location.state_dict())
    weight = torch.rand(60)
    assert torch.equal(location(X, INDEX, weight=weight), plain(X, INDEX, weight=weight))
    before = location.linear.weight.clone()
    location.reset_parameters()
    assert not torch.equal(location.linear.weight, before)


AGGREGATIONS = {
    "location": lambda: LocationAggregation(3, 3),
    "median": MedianAggregation,
    "quantile": lambda: QuantileAggregation(0.3),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_in_a_convolution_and_beside_others(name):
    conv = SAGEConv(3, 5, aggr=AGGREGATIONS[name]())
    assert conv(X[:8], EDGES).shape == (8, 5)
    conv.reset_parameters()
    several = MultiAggregation(["mean", AGGREGATIONS[name]()])
    assert several(X, INDEX).shape == (4, 6)
    assert several(X[:0]).shape == (0, 6)


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize(("shape", "dim"), [((2, 7, 3), -2), ((2, 5, 7, 3), 2), ((7, 2, 3), 0)])
def test_layouts_and_further_dimensions(name, shape, dim):
    torch.manual_seed(1)
    aggregation, x, weight = AGGREGATIONS[name](), torch.randn(shape), torch.rand(7)
    index, ptr = torch.tensor([2, 0, 2, 0, 0, 3, 2]), torch.tensor([0, 3, 3, 6, 7, 7])
    order = index.argsort(stable=True)
    for own in (None, weight):
        found = aggregation(x, index, dim_size=5, dim=dim, weight=own)
        flat = found.movedim(dim, -2).reshape(-1, 5, 3)
        for y, elements in zip(flat, x.movedim(dim, -2).reshape(-1, 7, 3), strict=True):
            assert_near(y, aggregation(elements, index, dim_size=5, weight=own), 1e-6)
        ordered = x.index_select(dim, order), None, ptr
        own = None if own is None else own[order]
        assert_near(aggregation(*ordered, dim=dim, weight=own), found, 1e-6)
    with pytest.raises(ValueError, match="dim is -1"):
        aggregation(x, index, dim=-1)


@pytest.mark.parametrize("interpolation", ["lower", "higher", "nearest", "midpoint", "linear"])
@pytest.mark.parametrize("q", [0.3, [0.1, 0.5, 0.9]])
def test_quantiles_are_those_of_torch_and_pytorch_geometric(q, interpolation):
    ours = QuantileAggregation(q, interpolation, fill_value=7.0)
    theirs = aggr.QuantileAggregation(q, interpolation, fill_value=7.0)
    assert isinstance(ours, aggr.QuantileAggregation)
    assert repr(ours) == repr(theirs)
    found = ours(X, INDEX, dim_size=6)
    assert found[4:].eq(7).all()
    levels = torch.tensor([q] if isinstance(q, float) else q)
    for number, y in enumerate(found[:4]):
        own = X[number == INDEX]
        assert torch.equal(y, torch.quantile(own, levels, 0, interpolation=interpolation).flatten())
    if interpolation != "nearest":  # theirs rounds with the offset of the set
        assert_near(found, theirs(X, INDEX, dim_size=6), 1e-5)
    x = torch.stack([X, -X], 1)  # [N, H, C]
    for dim, given in ((0, x), (1, x.movedim(0, 1))):
        expected = theirs(given, INDEX, dim=dim)
        assert ours(given, INDEX, dim=dim).shape == expected.shape
        if interpolation in ("lower", "higher"):
            assert torch.equal(ours(given, INDEX, dim=dim), expected)


def test_the_median_is_that_of_pytorch_geometric_with_weights():
    assert torch.equal(MedianAggregation()(X, INDEX), aggr.MedianAggregation()(X, INDEX))
    times = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(1))
    found = MedianAggregation(fill_value=2.0)(X, INDEX, dim_size=5, weight=times.float())
    copies = X.repeat_interleave(times, 0), INDEX.repeat_interleave(times)
    expected = MedianAggregation(fill_value=2.0)(*copies, dim_size=5)
    assert torch.equal(found, expected)
    assert found[4].eq(2).all()
    empty_first = MedianAggregation()(X, INDEX + 1)  # PyTorch Geometric reads beyond the batch
    assert torch.equal(empty_first[1:], MedianAggregation()(X, INDEX))
