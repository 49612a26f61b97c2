"""Laws: what must not change the output of a set, and what must."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import SCALINGS, flatten, make_layer, make_sets, offsets
from equipool import LearnedStart
from equipool.ops import segments
from equipool.ops.resnet_gradient import torch as torch_gradient

DTYPES = {"float64": (torch.float64, 1e-12), "float32": (torch.float32, 1e-5)}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
ROUTE = SimpleNamespace(factored=True)
JUNK = (0.0, 1e30, float("nan"), float("inf"), float("-inf"))

sizes = st.lists(st.integers(0, 6), min_size=1, max_size=6)
some = sizes.filter(lambda sizes: sum(sizes) > 0)
seeds = st.integers(0, 2**31)


ROUTES = ("factored", "factored in chunks", "autograd", "autograd in blocks")


@pytest.fixture(autouse=True, params=ROUTES, scope="module")
def _route(request):
    """Every law holds on every way to the gradient, and where very large batches are cut, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ROUTE, "factored", request.param.startswith("factored"))
        if request.param == "factored in chunks":
            patch.setattr(torch_gradient, "CPU_FLOATS", 120)
        if request.param == "autograd in blocks":
            patch.setattr(segments, "BLOCKED_FROM", 1)
            patch.setattr(segments, "BLOCK", 2)
        yield


def every_kind(law):
    """For every scaling, in both precisions."""
    law = pytest.mark.parametrize("precision", DTYPES)(law)
    return pytest.mark.parametrize("scaling", SCALINGS)(law)


@cache
def layer_of(scaling, precision, factored):
    """Wide enough that no norm divides by next to nothing, and slow enough to settle: elsewhere
    the function itself magnifies float32's rounding, however it is computed."""
    return make_layer(
        hidden=(32, 16),
        scaling=scaling,
        factored=factored,
        learning_rate=0.02 if scaling == "sum" else 0.05,
        start=LearnedStart(4, 0.1),
        dtype=DTYPES[precision][0],
    )


def assert_same(found, expected, precision):
    """Equal set by set, relative to the set's output."""
    scale = expected.abs().amax(-1, keepdim=True)
    assert found.shape == expected.shape
    assert bool(((found - expected).abs() <= DTYPES[precision][1] * scale).all())


def both(scaling, precision):
    return layer_of(scaling, precision, ROUTE.factored), DTYPES[precision][0]


@every_kind
@given(sizes, seeds)
def test_order_of_elements(scaling, precision, sizes, seed):
    layer, dtype = both(scaling, precision)
    x, index = flatten(make_sets(sizes, dtype=dtype, seed=seed))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    y = layer(x, index, dim_size=len(sizes))
    assert_same(layer(x[order], index[order], dim_size=len(sizes)), y, precision)


@every_kind
@given(sizes, seeds, st.data())
def test_order_of_sets(scaling, precision, sizes, seed, data):
    layer, dtype = both(scaling, precision)
    batch = make_sets(sizes, dtype=dtype, seed=seed)
    order = data.draw(st.permutations(range(len(batch))))
    y = layer(torch.cat(batch), ptr=offsets(batch))
    shuffled = [batch[i] for i in order]
    assert_same(layer(torch.cat(shuffled), ptr=offsets(shuffled)), y[list(order)], precision)


@every_kind
@given(sizes, seeds, st.data())
def test_other_sets(scaling, precision, sizes, seed, data):
    """Any sets, empty ones too, may come or go around a set."""
    layer, dtype = both(scaling, precision)
    batch = make_sets(sizes, dtype=dtype, seed=seed)
    y = layer(torch.cat(batch), ptr=offsets(batch))
    keep = data.draw(st.lists(st.sampled_from(range(len(batch))), unique=True, min_size=1))
    fewer = [batch[i] for i in keep]
    assert_same(layer(torch.cat(fewer), ptr=offsets(fewer)), y[keep], precision)


@every_kind
@given(sizes, seeds)
def test_alone(scaling, precision, sizes, seed):
    layer, dtype = both(scaling, precision)
    batch = make_sets(sizes, dtype=dtype, seed=seed)
    y = layer(torch.cat(batch), ptr=offsets(batch))
    assert_same(torch.cat([layer(x) for x in batch]), y, precision)


@every_kind
@given(sizes, seeds, st.integers(0, 3))
def test_empty_sets_at_the_end(scaling, precision, sizes, seed, more):
    layer, dtype = both(scaling, precision)
    x, index = flatten(make_sets(sizes, dtype=dtype, seed=seed))
    y = layer(x, index, dim_size=len(sizes) + more)
    assert_same(y[: len(sizes)], layer(x, index, dim_size=len(sizes)), precision)
    assert torch.equal(y[len(sizes) :], layer.start.y.expand(more, -1))


def padded(batch, length, junk, generator):
    """Each set's elements scattered over `length` places, the others filled with anything."""
    x = torch.full((len(batch), length, batch[0].shape[1]), junk, dtype=batch[0].dtype)
    mask = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, elements in enumerate(batch):
        places = torch.randperm(length, generator=generator)[: len(elements)]
        x[row, places], mask[row, places] = elements, True
    return x, mask


@every_kind
@given(sizes, seeds, st.integers(0, 4), st.sampled_from(JUNK))
def test_padding(scaling, precision, sizes, seed, more, junk):
    layer, dtype = both(scaling, precision)
    batch = make_sets(sizes, dtype=dtype, seed=seed)
    x, mask = padded(batch, max(sizes) + more, junk, torch.Generator().manual_seed(seed))
    assert_same(layer(x, mask=mask), layer(torch.cat(batch), ptr=offsets(batch)), precision)


@every_kind
@given(st.integers(1, 4), st.integers(0, 4), seeds)
def test_padded_without_mask(scaling, precision, num_sets, length, seed):
    layer, dtype = both(scaling, precision)
    batch = make_sets([length] * num_sets, dtype=dtype, seed=seed)
    y = layer(torch.cat(batch), ptr=offsets(batch))
    assert_same(layer(torch.stack(batch)), y, precision)


@every_kind
@given(sizes, seeds, st.integers(0, 5), st.sampled_from(JUNK), st.integers(-3, 9))
def test_flat_with_mask(scaling, precision, sizes, seed, more, junk, junk_index):
    """A batch padded to a capacity: what the mask hides may hold anything, its index too."""
    layer, dtype = both(scaling, precision)
    x, index = flatten(make_sets(sizes, dtype=dtype, seed=seed))
    order = torch.randperm(len(x) + more, generator=torch.Generator().manual_seed(seed))
    full = torch.cat([x, x.new_full((more, 3), junk)])[order]
    full_index = torch.cat([index, index.new_full((more,), junk_index)])[order]
    mask = order < len(x)
    y = layer(x, index, dim_size=len(sizes))
    assert_same(layer(full, full_index, mask=mask, dim_size=len(sizes)), y, precision)


@every_kind
@given(st.integers(0, 6), st.integers(0, 4), seeds, st.sampled_from(JUNK))
def test_one_set_with_mask(scaling, precision, size, more, seed, junk):
    layer, dtype = both(scaling, precision)
    (x,) = make_sets([size], dtype=dtype, seed=seed)
    full = torch.cat([x.new_full((more, 3), junk), x])
    assert_same(layer(full, mask=torch.arange(size + more) >= more), layer(x), precision)


@every_kind
@given(some, seeds)
def test_nested(scaling, precision, sizes, seed):
    layer, dtype = both(scaling, precision)
    batch = make_sets(sizes, dtype=dtype, seed=seed)
    nested = torch.nested.nested_tensor(batch, layout=torch.jagged)
    assert_same(layer(nested), layer(torch.cat(batch), ptr=offsets(batch)), precision)


@every_kind
@given(some, seeds, st.sampled_from(INTEGERS))
def test_dtype_of_index_and_ptr(scaling, precision, sizes, seed, integer):
    layer, dtype = both(scaling, precision)
    batch = make_sets(sizes, dtype=dtype, seed=seed)
    x, index = flatten(batch)
    assert torch.equal(layer(x, index.to(integer)), layer(x, index))
    ptr = offsets(batch)
    assert torch.equal(layer(x, ptr=ptr.to(integer)), layer(x, ptr=ptr))


@every_kind
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), seeds, st.integers(2, 4))
def test_repeating_every_element(scaling, precision, sizes, seed, times):
    """`mean` is blind to it; `log` and `sum` see how many there are."""
    layer, dtype = both(scaling, precision)
    batch = make_sets(sizes, dtype=dtype, seed=seed)
    repeated = [x.repeat(times, 1) for x in batch]
    y = layer(torch.cat(batch), ptr=offsets(batch))
    again = layer(torch.cat(repeated), ptr=offsets(repeated))
    if scaling == "mean":
        assert_same(again, y, precision)
    else:
        assert bool(((again - y).norm(dim=-1) > 1e-3 * y.norm(dim=-1)).all())


@given(some, seeds)
def test_gradients_are_the_same_in_every_layout(sizes, seed):
    layer = layer_of("log", "float64", ROUTE.factored)
    batch = [x.requires_grad_() for x in make_sets(sizes, seed=seed)]
    x, index = flatten(batch)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    width = max(sizes) + 1
    rows = [torch.nn.functional.pad(s, (0, 0, 0, width - len(s))) for s in batch]
    mask = torch.arange(width) < torch.tensor(sizes).unsqueeze(-1)
    wider = torch.cat([x, x.new_full((2, 3), float("nan"))])
    wider_index = torch.cat([index, index.new_zeros(2)])
    outputs = [
        layer(x, index, dim_size=len(sizes)),
        layer(x[order], index[order], dim_size=len(sizes)),
        layer(x, ptr=offsets(batch)),
        layer(torch.stack(rows), mask=mask),
        layer(wider, wider_index, mask=torch.arange(len(wider)) < len(x), dim_size=len(sizes)),
        layer(torch.nested.as_nested_tensor(batch, layout=torch.jagged)),
    ]
    inputs = [*batch, *layer.parameters()]
    readout = torch.arange(outputs[0].numel(), dtype=torch.float64).view_as(outputs[0])
    first, *others = (torch.autograd.grad((y * readout).sum(), inputs) for y in outputs)
    for other in others:
        for found, expected in zip(other, first, strict=True):
            assert torch.allclose(found, expected, rtol=1e-10, atol=1e-10)
