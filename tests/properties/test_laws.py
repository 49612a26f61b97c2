"""Laws: what must not change the output of a set, and what must."""

from dataclasses import dataclass, replace
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


@cache
def layer_of(scaling, precision, factored):
    """Wide enough that no norm divides by next to nothing, and slow enough to settle: elsewhere
    the function itself magnifies float32's rounding, however it is computed."""
    return make_layer(
        hidden=(32, 16), scaling=scaling, factored=factored, dtype=DTYPES[precision][0],
        learning_rate=0.02 if scaling == "sum" else 0.05, start=LearnedStart(4, 0.1),
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A layer and a batch of sets."""

    scaling: str
    precision: str
    sizes: list[int]
    seed: int

    @property
    def layer(self):
        return layer_of(self.scaling, self.precision, ROUTE.factored)

    @property
    def sets(self):
        return make_sets(self.sizes, dtype=DTYPES[self.precision][0], seed=self.seed)

    @property
    def y(self):
        return self.of(self.sets)

    def of(self, sets):
        return self.layer(torch.cat(sets), ptr=offsets(sets))

    @property
    def generator(self):
        return torch.Generator().manual_seed(self.seed)

    def assert_same(self, found, expected):
        """Equal set by set, relative to the set's output."""
        scale = expected.abs().amax(-1, keepdim=True)
        assert found.shape == expected.shape
        assert bool(((found - expected).abs() <= DTYPES[self.precision][1] * scale).all())


def cases(smallest=0, most=6):
    sizes = st.lists(st.integers(smallest, 6), min_size=1, max_size=most)
    seeds = st.integers(0, 2**31)
    return st.builds(Case, st.sampled_from(SCALINGS), st.sampled_from(list(DTYPES)), sizes, seeds)


occupied = cases().filter(lambda case: sum(case.sizes) > 0)
junk = st.sampled_from((0.0, 1e30, float("nan"), float("inf"), float("-inf")))


@given(cases())
def test_order_of_elements(case):
    x, index = flatten(case.sets)
    order = torch.randperm(len(x), generator=case.generator)
    case.assert_same(case.layer(x[order], index[order], dim_size=len(case.sizes)), case.y)


@given(cases(), st.data())
def test_other_sets_and_their_order(case, data):
    """Any sets, empty ones too, may come or go around a set."""
    rows = st.lists(st.sampled_from(range(len(case.sizes))), unique=True, min_size=1)
    keep = data.draw(rows | st.permutations(range(len(case.sizes))))
    case.assert_same(case.of([case.sets[row] for row in keep]), case.y[list(keep)])


@given(cases())
def test_alone(case):
    case.assert_same(torch.cat([case.layer(x) for x in case.sets]), case.y)


@given(cases(), st.integers(0, 3))
def test_empty_sets_at_the_end(case, more):
    x, index = flatten(case.sets)
    y = case.layer(x, index, dim_size=len(case.sizes) + more)
    case.assert_same(y[: len(case.sizes)], case.y)
    assert torch.equal(y[len(case.sizes) :], case.layer.start.y.expand(more, -1))


@given(cases(), st.integers(0, 4), junk)
def test_padding(case, more, junk):
    """Each set's elements scattered over places, the others filled with anything."""
    length = max(case.sizes) + more
    x = torch.full((len(case.sizes), length, 3), junk, dtype=case.sets[0].dtype)
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    for row, elements in enumerate(case.sets):
        places = torch.randperm(length, generator=case.generator)[: len(elements)]
        x[row, places], mask[row, places] = elements, True
    case.assert_same(case.layer(x, mask=mask), case.y)


@given(cases(most=1), st.integers(1, 4))
def test_padded_without_mask(case, num_sets):
    case = replace(case, sizes=case.sizes * num_sets)
    case.assert_same(case.layer(torch.stack(case.sets)), case.y)


@given(cases(), st.integers(0, 5), junk, st.integers(-3, 9))
def test_flat_with_mask(case, more, junk, junk_index):
    """A batch padded to a capacity: what the mask hides may hold anything, its index too."""
    x, index = flatten(case.sets)
    order = torch.randperm(len(x) + more, generator=case.generator)
    full = torch.cat([x, x.new_full((more, 3), junk)])[order]
    full_index = torch.cat([index, index.new_full((more,), junk_index)])[order]
    y = case.layer(full, full_index, mask=order < len(x), dim_size=len(case.sizes))
    case.assert_same(y, case.y)


@given(cases(most=1), st.integers(0, 4), junk)
def test_one_set_with_mask(case, more, junk):
    (x,) = case.sets
    full = torch.cat([x.new_full((more, 3), junk), x])
    case.assert_same(case.layer(full, mask=torch.arange(len(full)) >= more), case.y)


@given(occupied)
def test_nested(case):
    nested = torch.nested.nested_tensor(case.sets, layout=torch.jagged)
    case.assert_same(case.layer(nested), case.y)


@given(occupied, st.sampled_from(INTEGERS))
def test_dtype_of_index_and_ptr(case, integer):
    x, index = flatten(case.sets)
    assert torch.equal(case.layer(x, index.to(integer)), case.layer(x, index))
    assert torch.equal(case.layer(x, ptr=offsets(case.sets).to(integer)), case.y)


@given(cases(smallest=1, most=4), st.integers(2, 4))
def test_repeating_every_element(case, times):
    """`mean` is blind to it; `log` and `sum` see how many there are."""
    y, again = case.y, case.of([x.repeat(times, 1) for x in case.sets])
    if case.scaling == "mean":
        case.assert_same(again, y)
    else:
        assert bool(((again - y).norm(dim=-1) > 1e-3 * y.norm(dim=-1)).all())


@given(occupied)
def test_gradients_are_the_same_in_every_layout(case):
    case = replace(case, precision="float64")
    layer, num_sets = case.layer, len(case.sizes)
    batch = [x.requires_grad_() for x in case.sets]
    x, index = flatten(batch)
    order = torch.randperm(len(x), generator=case.generator)
    width = max(case.sizes) + 1
    rows = [torch.nn.functional.pad(s, (0, 0, 0, width - len(s))) for s in batch]
    mask = torch.arange(width) < torch.tensor(case.sizes).unsqueeze(-1)
    wider = torch.cat([x, x.new_full((2, 3), float("nan"))])
    wider_index = torch.cat([index, index.new_zeros(2)])
    outputs = [
        layer(x, index, dim_size=num_sets),
        layer(x[order], index[order], dim_size=num_sets),
        layer(x, ptr=offsets(batch)),
        layer(torch.stack(rows), mask=mask),
        layer(wider, wider_index, mask=torch.arange(len(wider)) < len(x), dim_size=num_sets),
        layer(torch.nested.as_nested_tensor(batch, layout=torch.jagged)),
    ]
    inputs = [*batch, *layer.parameters()]
    readout = torch.arange(outputs[0].numel(), dtype=torch.float64).view_as(outputs[0])
    first, *others = (torch.autograd.grad((y * readout).sum(), inputs) for y in outputs)
    for other in others:
        for found, expected in zip(other, first, strict=True):
            assert torch.allclose(found, expected, rtol=1e-10, atol=1e-10)
