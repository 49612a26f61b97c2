"""What each rival computes, against the same written plainly for one set."""

import math

import pytest
import torch
from torch_geometric.nn import aggr

from cases import assert_near, flatten, make_sets
from equipool import EquilibriumAggregation
from equipool.baselines import AGGREGATIONS, aggregation_from_name
from equipool.baselines.learned import (
    AttentionPooling,
    LAFPooling,
    QuantilePooling,
    SoftmaxPooling,
)
from equipool.baselines.packaged import PNAPooling, Set2SetPooling, SetTransformerPooling
from equipool.baselines.reductions import MaxPooling, MeanPooling, SumPooling

SIZES = [3, 1, 5, 2]


def check(layer, channels, alone, tolerance=1e-11):
    """Compare a batch with `alone`, which takes one set `[n, channels]`."""
    layer = layer.double()
    batch = make_sets(SIZES, channels)
    x, index = flatten(batch)
    with torch.no_grad():
        assert_near(layer(x, index), torch.stack([alone(s) for s in batch]), tolerance)


def test_sum_mean_and_maximum():
    check(SumPooling(3, 3), 3, lambda s: s.sum(0))
    check(SumPooling(3, 3, scale=0.25), 3, lambda s: s.sum(0) / 4)
    check(MeanPooling(3, 3), 3, lambda s: s.mean(0))
    check(MaxPooling(3, 3), 3, lambda s: s.amax(0))
    assert MaxPooling(1, 1)(torch.tensor([[-3.0], [-2.0]])).item() == -2.0
    layer = SumPooling(3, 5)
    check(layer, 3, lambda s: layer.linear(s.sum(0)))


@pytest.mark.parametrize(("channels", "heads"), [(8, 4), (6, 2), (5, 1)])
def test_attention_head_by_head(channels, heads):
    layer = AttentionPooling(3, channels)
    assert layer.heads == heads
    size = channels // heads

    def alone(s):
        keys, values = layer.keys(s), layer.values(s)
        outputs = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            weights = torch.softmax(keys[:, part] @ layer.query[h] / math.sqrt(size), 0)
            outputs.append(weights @ values[:, part])
        return torch.cat(outputs)

    check(layer, 3, alone)


def test_pna_has_its_twelve_parts():
    layer = PNAPooling(3, 4, sizes=[2, 9])
    average = (math.log(3) + math.log(10)) / 2

    def alone(s):
        parts = torch.cat([s.mean(0), s.amin(0), s.amax(0), s.std(0, correction=0)])
        log = math.log(len(s) + 1)
        return layer.linear(torch.cat([parts, parts * log / average, parts * average / log]))

    check(layer, 3, alone, tolerance=1e-6)  # the average is kept in float32


def test_laf_by_its_formula():
    layer = LAFPooling(2, 4, units=3)

    def alone(s):
        softplus = torch.nn.functional.softplus
        u = torch.sigmoid(s).unsqueeze(-1)
        (b, d, f, h), (a, c, e, g) = softplus(layer.raw_inner), softplus(layer.raw_outer)
        (alpha, beta), (gamma, delta) = layer.factors, softplus(layer.raw_divisors)
        top = alpha * (u**b).sum(0) ** a + beta * ((1 - u) ** d).sum(0) ** c
        bottom = gamma * (u**f).sum(0) ** e + delta * ((1 - u) ** h).sum(0) ** g
        return layer.linear((top / bottom).flatten())

    check(layer, 2, alone)


def test_quantiles_and_softmax_are_those_of_pytorch_geometric():
    theirs, layer = aggr.QuantileAggregation([0.1, 0.5, 0.9]).double(), QuantilePooling(3, 4)
    check(layer, 3, lambda s: layer.linear(theirs(s, torch.zeros(len(s)).long())[0]), 1e-6)
    theirs, soft = aggr.SoftmaxAggregation(learn=True, channels=3), SoftmaxPooling(3, 4)
    with torch.no_grad():
        soft.temperature.copy_(theirs.t.copy_(torch.tensor([-1.0, 0.5, 3.0])))
    alone = torch.zeros(9).long()
    check(soft, 3, lambda s: soft.linear(theirs(s, alone[: len(s)])[0]), 1e-6)


def test_set2set_is_that_of_pytorch_geometric():
    layer = Set2SetPooling(3, 4)
    check(layer, 3, lambda s: layer.linear(layer.aggregation(s)[0]))


def test_set_transformer_is_that_of_pytorch_geometric():
    layer = SetTransformerPooling(4, 4)
    assert layer.aggregation.heads == 4
    alone = torch.zeros(1, dtype=torch.long)
    check(layer, 4, lambda s: layer.aggregation(s, alone.expand(len(s)))[0])


def test_names_are_those_of_the_layer_and_of_its_rivals():
    assert isinstance(aggregation_from_name("equilibrium", 3, 4), EquilibriumAggregation)
    x = torch.ones(6, 2)
    scaled = aggregation_from_name("scaled-sum", 2, 2, set_size=3)
    assert torch.equal(scaled(x), 2 * x[:1])
    pna = aggregation_from_name("pna", 2, 2, set_size=7)
    assert pna.aggregation.avg_deg_log.item() == pytest.approx(math.log(8))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("median", {}, "'median', expected one of .*'set2set'"),
        ("sum", {"in_channels": 0}, "in_channels is 0"),
        ("pna", {"set_size": 0}, "set_size is 0"),
        *((name, {}, "x has 2 channels, expected in_channels = 3") for name in AGGREGATIONS),
    ],
)
def test_bad_arguments_are_named(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        aggregation_from_name(name, **{"in_channels": 3, "out_channels": 4} | arguments)(
            torch.randn(5, 2)
        )


def test_missing_pytorch_geometric_is_named(monkeypatch):
    monkeypatch.setattr("equipool.extras.find_spec", lambda package: None)
    with pytest.raises(ImportError, match=r'torch_geometric. Run: pip install "equipool\[pyg\]"'):
        aggregation_from_name("pna", 3, 4)


@pytest.mark.parametrize("name", [name for name in AGGREGATIONS if name != "equilibrium"])
def test_sets_are_pooled_without_a_look_at_values(name):
    """A meta tensor has none, so that a step that needs them would fail, as where the longest of
    ragged sets has to be found."""
    layer = aggregation_from_name(name, 4, 4).to("meta")
    x = torch.empty(2, 5, 4, device="meta", requires_grad=True)
    layer(x, mask=torch.empty(2, 5, device="meta", dtype=torch.bool)).sum().backward()
    assert x.grad.shape == x.shape
    x, index = x.detach()[0].requires_grad_(), torch.empty(5, dtype=torch.long, device="meta")
    if name != "set-transformer":
        layer(x, index, dim_size=2).sum().backward()
        assert x.grad.shape == x.shape
    else:
        with pytest.raises(RuntimeError, match="meta"):
            layer(x, index, dim_size=2)


@pytest.mark.parametrize("name", ["sum", "mean", "attention"])
def test_long_sums_are_taken_in_float32(name):
    """In bfloat16 a running sum of ones stops at 256."""
    layer = aggregation_from_name(name, 4, 4).bfloat16()
    x = torch.ones(1000, 4, dtype=torch.bfloat16)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    expected = {"sum": 1000 * x[:1], "mean": x[:1]}.get(name)
    expected = layer(x[:1]) if expected is None else expected
    assert_near(y.float(), expected.float(), 0.01)


@pytest.mark.parametrize("size", [50.0, -200.0, 1e4, -1e4])
def test_gradients_of_laf_are_finite_however_large_the_numbers(size):
    torch.manual_seed(0)
    layer = LAFPooling(3, 4)
    x = (size * torch.rand(6, 3)).requires_grad_()
    y = layer(x, torch.tensor([0, 0, 0, 1, 1, 2]))
    assert y.isfinite().all()
    y.square().sum().backward()
    for gradient in (x.grad, *(parameter.grad for parameter in layer.parameters())):
        assert gradient.isfinite().all()
