"""Laws of the rivals: what must not change the output of a set."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_near, flatten, make_sets, offsets
from equipool import sets
from equipool.baselines import AGGREGATIONS, aggregation_from_name

DTYPES = {"float64": (torch.float64, 1e-11), "float32": (torch.float32, 1e-4)}
JUNK = (0.0, 1e30, float("nan"), float("inf"))
RIVALS = [name for name in AGGREGATIONS if name != "equilibrium"]  # its laws are in properties/
ROUTES = {"where values are at hand": "float64", "as on a GPU": "float32"}

sizes = st.lists(st.integers(0, 6), min_size=1, max_size=6)
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True, params=ROUTES, scope="module")
def precision(request):
    """On a GPU padding is carried along as a row of its own; here that can be had, too."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as on a GPU":
            patch.setattr(sets, "values_are_at_hand", lambda x: False)
        yield ROUTES[request.param]


@cache
def rival(name, precision):
    torch.manual_seed(0)
    return aggregation_from_name(name, 3, 4, set_size=5).to(DTYPES[precision][0])


def given_sets(precision, sizes, seed):
    return make_sets(sizes, dtype=DTYPES[precision][0], seed=seed)


def assert_same(found, expected, precision):
    assert bool(expected.isfinite().all())
    assert_near(found, expected, DTYPES[precision][1])


@pytest.mark.parametrize("name", RIVALS)
@given(sizes, seeds, st.integers(0, 3))
def test_order_of_elements_and_empty_sets_at_the_end(name, precision, sizes, seed, more):
    layer = rival(name, precision)
    x, index = flatten(given_sets(precision, sizes, seed))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    y = layer(x, index, dim_size=len(sizes))
    shuffled = layer(x[order], index[order], dim_size=len(sizes) + more)
    assert_same(shuffled[: len(sizes)], y, precision)
    assert_same(shuffled[len(sizes) :], layer(x[:0]).expand(more, -1), precision)


@pytest.mark.parametrize("name", RIVALS)
@given(sizes, seeds, st.data())
def test_other_sets(name, precision, sizes, seed, data):
    """Any sets, empty and very long ones too, may come or go around a set, down to none."""
    layer = rival(name, precision)
    batch = given_sets(precision, [*sizes, 0, 40], seed)
    y = layer(torch.cat(batch), ptr=offsets(batch))
    keep = data.draw(st.lists(st.sampled_from(range(len(batch))), unique=True, min_size=1))
    fewer = [batch[i] for i in keep]
    assert_same(layer(torch.cat(fewer), ptr=offsets(fewer)), y[keep], precision)
    assert_same(layer(fewer[0]), y[keep[:1]], precision)


@pytest.mark.parametrize("name", RIVALS)
@given(sizes.filter(any), seeds, st.integers(0, 3), st.sampled_from(JUNK))
def test_layouts(name, precision, sizes, seed, more, junk):
    layer = rival(name, precision)
    batch = given_sets(precision, sizes, seed)
    x, index = flatten(batch)
    y = layer(x, index, dim_size=len(sizes))
    for other in other_layouts(layer, batch, more, junk):
        assert_same(other, y, precision)


def other_layouts(layer, batch, more, junk):
    """The output from offsets, padded, with junk among the elements, and nested."""
    x, index = flatten(batch)
    width = max(len(s) for s in batch) + more
    rows = [torch.nn.functional.pad(s, (0, 0, 0, width - len(s)), value=junk) for s in batch]
    mask = torch.arange(width) < torch.tensor([len(s) for s in batch]).unsqueeze(-1)
    wider = torch.cat([x.new_full((more, 3), junk), x])
    wider_index = torch.cat([index.new_zeros(more), index])
    yield layer(x, ptr=offsets(batch))
    yield layer(torch.stack(rows), mask=mask)
    yield layer(wider, wider_index, mask=torch.arange(len(wider)) >= more, dim_size=len(batch))
    yield layer(torch.nested.as_nested_tensor(batch, layout=torch.jagged))


@pytest.mark.parametrize("name", RIVALS)
@given(sizes.filter(any), seeds)
def test_gradients_are_the_same_in_every_layout(name, sizes, seed):
    layer = rival(name, "float64")
    batch = [x.requires_grad_() for x in make_sets(sizes, seed=seed)]
    x, index = flatten(batch)
    y = layer(x, index, dim_size=len(sizes))
    readout = torch.arange(y.numel(), dtype=torch.float64).view_as(y) + 1
    inputs = [*batch, *(one for one in layer.parameters() if one.requires_grad)]
    expected = torch.autograd.grad((y * readout).sum(), inputs)
    assert all(bool(gradient.isfinite().all()) for gradient in expected)
    for other in other_layouts(layer, batch, 2, float("nan")):
        found = torch.autograd.grad((other * readout).sum(), inputs)
        for one, two in zip(found, expected, strict=True):
            assert torch.allclose(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_parameter_and_every_set_is_heard(name):
    """A gradient for each, finite beside empty sets; and other sets have other outputs."""
    torch.manual_seed(0)
    layer = aggregation_from_name(name, 8, 6).double()  # so wide that some unit is active
    batch = [x.requires_grad_() for x in make_sets([0, 1, 4, 0, 3, 1], 8)]
    y = layer(torch.cat(batch), ptr=offsets(batch))
    occupied = [i for i, x in enumerate(batch) if len(x)]
    assert len({tuple(row) for row in y[occupied].tolist()}) == len(occupied)
    learned = [one for one in layer.parameters() if one.requires_grad]
    inputs = [batch[i] for i in occupied] + learned
    for gradient in torch.autograd.grad(y.square().sum(), inputs):
        assert bool(gradient.isfinite().all())
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_broken_set_breaks_no_other(name):
    layer = rival(name, "float64")
    batch = make_sets([2, 3, 4])
    y = layer(torch.cat(batch), ptr=offsets(batch))
    batch[1][0, 0] = float("nan")
    broken = layer(torch.cat(batch), ptr=offsets(batch))
    assert_near(broken[::2], y[::2], 1e-11)
    assert not bool(broken[1].isfinite().all())
