"""Weight 2 is the same as two copies, weight 0 the same as absence: in every call and layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import equipool
from cases import SCALINGS, Quadratic
from equipool import EquilibriumAggregation, Sets, ToTolerance
from equipool.baselines import AGGREGATIONS
from equipool.potentials import FrechetMean, Potential, SummedPotential

NAN = float("nan")


class OwnSum(SummedPotential):
    """A user's own sum, which knows nothing of weights."""

    def __init__(self, x, sets):
        self.x, self.sets = x, sets

    def value(self, y):
        return self.sets.sum((self.x[:, :2] - self.sets.spread(y)).square().sum(-1))

    def gradient(self, y):
        return self.sets.sum(2 * (self.sets.spread(y) - self.x[:, :2]))


class Own(Potential):
    def forward(self, x, y):
        return (x[:, :2] - y).square().sum(-1)

    def bind(self, x, sets):
        return OwnSum(x, sets)


class First(nn.Module):
    """A user's module, which needs as many outputs as channels, for two of three channels."""

    def __init__(self, potential):
        super().__init__()
        self.potential = potential

    def forward(self, x, y):
        return self.potential(x[:, :2], y)


POTENTIALS = {
    "resnet": lambda: equipool.ResNetPotential(3, 2, (16, 16, 4)),
    "resnet, automatic": lambda: equipool.ResNetPotential(3, 2, (16, 16, 4), factored=False),
    "convex": lambda: equipool.ConvexPotential(3, 2, (6, 4)),
    "location": lambda: equipool.LocationPotential(3, 2, asymmetries=1, heads=2),
    "frechet": lambda: First(FrechetMean(nn.PairwiseDistance())),
    "any module": lambda: First(Quadratic()),
    "own sum": Own,
}
RIVALS = (
    "location", "sum", "mean", "max", "softmax", "attention", "gated-attention", "laf",
)  # fmt: skip
REFUSING = ("quantile", "pna", "set2set", "set-transformer")


def make_layer(potential="resnet", scaling="log", **options):
    torch.manual_seed(0)
    if "steps" not in options and potential != "location":
        options["steps"] = 6
    return EquilibriumAggregation(
        3, 2, potential=POTENTIALS[potential](), scaling=scaling, **options
    ).double()


def converging(potential="convex", scaling="log-mean"):
    steps = ToTolerance(1e-6, 20)
    return make_layer(potential, scaling, solver=equipool.Newton(), steps=steps).eval()


def make_batch(sizes, seed):
    """Elements, their sets, in no order, and whole weights, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    index = index[torch.randperm(len(index), generator=generator)]
    x = torch.randn(len(index), 3, generator=generator, dtype=torch.float64)
    times = torch.randint(0, 4, (len(index),), generator=generator)
    return x, index, times


def layouts(x, index, weight, num_sets):
    """The same batch in every layout, as the arguments of a call. What pads holds NaN."""
    order = torch.argsort(index, stable=True)
    counts = torch.bincount(index, minlength=num_sets)
    ptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    rows, weights = x[order].split(counts.tolist()), weight[order].split(counts.tolist())
    length = int(counts.max()) + 1
    mask = torch.arange(length) < counts.unsqueeze(-1)
    padded = [nn.functional.pad(row, (0, 0, 0, length - len(row)), value=NAN) for row in rows]
    padded_weights = [nn.functional.pad(w, (0, length - len(w)), value=NAN) for w in weights]
    zeros = [nn.functional.pad(w, (0, length - len(w))) for w in weights]
    more = torch.cat([x, x.new_full((2, 3), NAN)])
    sets = Sets.from_index(index, num_sets)
    found = {
        "index": ((x, index), {"dim_size": num_sets, "weight": weight}),
        "ptr": ((x[order],), {"ptr": ptr, "weight": weight[order]}),
        "padded": ((torch.stack(padded),), {"mask": mask, "weight": torch.stack(padded_weights)}),
        "padded by weights": ((torch.stack(padded),), {"weight": torch.stack(zeros)}),
        "flat mask": (
            (more, torch.cat([index, index.new_zeros(2)])),
            {
                "mask": torch.arange(len(more)) < len(x),
                "dim_size": num_sets,
                "weight": torch.cat([weight, weight.new_full((2,), NAN)]),
            },
        ),
        "sets": ((x, sets), {"weight": weight}),
        "sets of a mask": (
            (torch.stack(padded), Sets.from_mask(mask)),
            {"weight": torch.stack(padded_weights)},
        ),
    }
    if len(x):
        jagged = [
            torch.nested.as_nested_tensor([*of], layout=torch.jagged) for of in (rows, weights)
        ]
        found["nested"] = ((jagged[0],), {"weight": jagged[1]})
        found["nested, flat weights"] = ((jagged[0],), {"weight": weight[order]})
    return found


def copies(x, index, times):
    """As many copies of each element as its weight says."""
    return x.repeat_interleave(times, 0), index.repeat_interleave(times)


def assert_same(found, expected, tolerance=1e-9):
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


sizes = st.lists(st.integers(0, 5), min_size=1, max_size=4)
seeds = st.integers(0, 2**31)
junk = st.sampled_from((0.0, 1e30, NAN, float("inf")))


@pytest.fixture(params=[True, False], ids=["dropped", "carried along"])
def _at_hand(request, monkeypatch):
    """On a GPU elements of weight 0 stay in the batch."""
    if not request.param:
        monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: False)


def check_call(call, sizes, seed, junk, tolerance=1e-9, without=()):
    x, index, times = make_batch(sizes, seed)
    expected = call(*copies(x, index, times), dim_size=len(sizes))
    x[times == 0] = junk
    for name, (args, options) in layouts(x, index, times.to(x.dtype), len(sizes)).items():
        if name not in without:
            assert_same(call(*args, **options), expected, tolerance)


@pytest.mark.usefixtures("_at_hand")
@pytest.mark.parametrize("potential", POTENTIALS)
@given(sizes=sizes, seed=seeds, junk=junk, scaling=st.sampled_from(SCALINGS))
def test_every_potential_and_layout(potential, sizes, seed, junk, scaling):
    check_call(make_layer(potential, scaling), sizes, seed, junk)


@pytest.mark.usefixtures("_at_hand")
@pytest.mark.parametrize("name", RIVALS)
@given(sizes=sizes, seed=seeds, junk=junk)
def test_every_rival(name, sizes, seed, junk):
    torch.manual_seed(0)
    check_call(AGGREGATIONS[name](3, 2).double(), sizes, seed, junk)


@pytest.mark.usefixtures("_at_hand")
@given(sizes=sizes, seed=seeds, junk=junk)
def test_location_pooling(sizes, seed, junk):
    torch.manual_seed(0)
    check_call(equipool.LocationPooling(3, 2).double(), sizes, seed, junk)


FUNCTIONS = {
    "median": equipool.functional.median,
    "max": equipool.functional.max,
    "mean": equipool.functional.mean,
    "expectile": lambda x, *args, **options: equipool.functional.expectile(
        x, 0.8, *args, **options
    ),
}


@pytest.mark.usefixtures("_at_hand")
@pytest.mark.parametrize("name", FUNCTIONS)
@given(sizes=sizes, seed=seeds, junk=junk)
def test_functions(name, sizes, seed, junk):
    check_call(FUNCTIONS[name], sizes, seed, junk)


@pytest.mark.usefixtures("_at_hand")
@pytest.mark.parametrize("potential", POTENTIALS)
@given(sizes=sizes, seed=seeds)
def test_gradients(potential, sizes, seed):
    """Of parameters, and of elements: the sum of those of the copies."""
    layer = make_layer(potential)
    x, index, times = make_batch(sizes, seed)
    x.requires_grad_()
    inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]
    found = layer.solve(x, index, dim_size=len(sizes), weight=times.double())
    expected = layer.solve(*copies(x, index, times), dim_size=len(sizes))
    assert_same(found.aux_loss, expected.aux_loss)
    readout = torch.linspace(1, 2, expected.y.numel(), dtype=x.dtype).view_as(expected.y)
    one, other = (
        torch.autograd.grad(
            (each.y * readout).sum(), inputs, allow_unused=True, materialize_grads=True
        )
        for each in (found, expected)
    )
    for a, b in zip(one, other, strict=True):
        assert_same(a, b, 1e-7)


WAYS = {
    "unrolled": equipool.Unrolled(),
    "truncated": equipool.Truncated(2),
    "implicit": equipool.Implicit("cholesky", 1e-3),
}


@pytest.mark.usefixtures("_at_hand")
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("potential", POTENTIALS)
def test_gradient_of_weights(potential, scaling):
    """Against finite differences; absent elements receive none."""
    layer = make_layer(potential, scaling)
    x, index, _ = make_batch((3, 1, 4), 3)
    weight = torch.linspace(0.3, 2, 8, dtype=x.dtype).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda weight: layer(x, index, dim_size=3, weight=weight).sum(),
        weight,
        atol=1e-6,
        rtol=1e-5,
    )
    absent = torch.where(index == 2, 0, weight.detach()).requires_grad_()
    layer(x, index, dim_size=3, weight=absent).square().sum().backward()
    assert not absent.grad[index == 2].any()
    assert absent.grad[index == 0].all()


def test_implicit_gradient_of_weights():
    layer = converging()
    layer.differentiation = equipool.Implicit("cholesky")
    x, index, _ = make_batch((3, 2), 3)
    weight = torch.linspace(0.3, 2, 5, dtype=x.dtype).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda weight: layer(x, index, dim_size=2, weight=weight), weight, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("potential", POTENTIALS)
def test_solve_and_energy(potential):
    layer = make_layer(potential)
    x, index, times = make_batch((3, 0, 4, 2), 1)
    times[index == 3] = 0
    one, other = (
        layer.solve(*args, dim_size=4, **options)
        for args, options in (
            ((x, index), {"weight": times.double()}), (copies(x, index, times), {})
        )
    )  # fmt: skip
    for name in ("y", "energy", "residual", "aux_loss", "error_bound", "num_steps"):
        a, b = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, msg=name)
    assert one.occupied.tolist() == other.occupied.tolist() == [True, False, True, False]
    energy = layer.energy(x, index, dim_size=4, weight=times.double())
    expected = layer.energy(*copies(x, index, times), dim_size=4)
    y = one.y.detach() + 0.1
    assert_same(energy(y), expected(y))
    assert_same(energy.gradient(y), expected.gradient(y))
    assert_same(energy.hessian(y), expected.hessian(y))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_small_weights(scaling):
    """A weight far below 1 counts for what it is; the mean does not depend on the unit."""
    x, index, _ = make_batch((3, 4), 2)
    layer = make_layer("own sum", scaling, steps=300, regularizer=0)
    expected = torch.stack([x[index == row, :2].mean(0) for row in (0, 1)])
    for unit in (1e-9, 1e-3, 1.0) if scaling in ("mean",) else (0.2, 1.0):
        y = layer(x, index, weight=torch.full_like(x[:, 0], unit))
        assert_same(y, expected, 1e-6)


@pytest.mark.parametrize("method", ["newton", "exact"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_influence(scaling, method):
    """An element of weight 2 leaves as its copies leave together."""
    layer = converging(scaling=scaling)
    x, index, times = make_batch((3, 4, 1), 1)
    times[0] = 0
    found = equipool.influence(layer, x, index, dim_size=3, weight=times.double(), method=method)
    names = torch.arange(len(x)).repeat_interleave(times)
    expected = equipool.influence(
        layer, *copies(x, index, times), dim_size=3, groups=names, method=method
    )
    present = times > 0
    assert found.set_index.tolist() == torch.where(present, index, -1).tolist()
    assert not found.change[~present].any()
    assert_same(found.change[expected.group_index], expected.change, 1e-5)
    groups = index + 5 * (torch.arange(len(x)) % 2)
    found = equipool.influence(
        layer, x, index, dim_size=3, weight=times.double(), method=method, groups=groups
    )
    expected = equipool.influence(
        layer, *copies(x, index, times), dim_size=3, method=method,
        groups=groups.repeat_interleave(times),
    )  # fmt: skip
    assert found.group_index.tolist() == expected.group_index.tolist()
    assert_same(found.change, expected.change, 1e-5)


def test_laplace():
    layer = converging()
    x, index, times = make_batch((3, 4), 1)
    found = equipool.laplace(layer, x, index, dim_size=2, weight=times.double())
    expected = equipool.laplace(layer, *copies(x, index, times), dim_size=2)
    assert_same(found.covariance, expected.covariance, 1e-6)


def test_diagnostics():
    layer = converging()
    x, index, times = make_batch((3, 4), 1)
    options = {"dim_size": 2, "weight": times.double()}
    one, other = (
        equipool.diagnostics.path_independence(layer, *args, **given, steps=(1, 2), num_starts=2)
        for args, given in (((x, index), options), (copies(x, index, times), {"dim_size": 2}))
    )
    assert one.rows[0].distance == pytest.approx(other.rows[0].distance)
    layer = make_layer().float()
    options["weight"] = times.float()
    methods = {"exact": equipool.Unrolled()}
    (row,) = equipool.diagnostics.compare_gradients(
        layer, x.float(), index, **options, methods=methods, repeats=1
    )
    assert row.parameters.relative_error < 1e-3
    assert row.x.relative_error < 1e-3


def test_live_sets():
    layer, steps = converging(), ToTolerance(1e-8, 100)
    x, index, times = make_batch((3, 4), 1)
    live = equipool.live.LiveSets(layer, x, index, dim_size=2, weight=times.double(), steps=steps)
    assert_same(live.y, layer(*copies(x, index, times), dim_size=2), 1e-6)
    more, weight = torch.randn(3, 3, dtype=x.dtype), torch.tensor([2.0, 0.0, 1.0]).double()
    ids = live.add(more, [0, 0, 1], weight)
    x, index = torch.cat([x, more]), torch.cat([index, torch.tensor([0, 0, 1])])
    times = torch.cat([times, weight.long()])
    assert_same(live.y, layer(*copies(x, index, times), dim_size=2), 1e-6)
    live.replace(ids[:1], x[:1])
    x[-3] = x[0]
    expected = layer(*copies(x, index, times), dim_size=2)
    assert_same(live.y, expected, 1e-6)
    other = equipool.live.LiveSets(layer, x[:0], index[:0], dim_size=2, steps=steps)
    other.load_state_dict(live.state_dict())
    assert_same(other.y, expected, 1e-6)
    assert_same(other.weight, live.weight)
    live.remove([number for number, of in enumerate(index.tolist()) if of == 0 and times[number]])
    assert_same(live.y[0], layer(x[:0], ptr=torch.tensor([0, 0]))[0], 1e-6)  # only absent ones left


@pytest.mark.usefixtures("_at_hand")
@pytest.mark.parametrize("bad", [False, True])
def test_chunks(bad):
    layer = make_layer()
    x, index, times = make_batch((5, 4, 0), 1)
    x[times == 0] = NAN
    if bad:
        x[(index == 1) & (times > 0)] = NAN
    chunks = equipool.large.chunked(x, index, size=2, weight=times.double())
    found = equipool.large.solve_chunks(layer, chunks, dim_size=3)
    expected = layer.solve(*copies(x, index, times), dim_size=3)
    torch.testing.assert_close(found.y, expected.y, equal_nan=True)
    torch.testing.assert_close(found.energy, expected.energy, equal_nan=True)


def test_pyg():
    pyg = pytest.importorskip("equipool.pyg")
    torch.manual_seed(0)
    layer = pyg.EquilibriumAggregation(3, 2).double()
    own = ("padded by weights", "sets of a mask")  # further dimensions, to PyG
    check_call(layer, (3, 0, 4), 1, NAN, without=own)
    x, index, times = make_batch((3, 0, 4), 1)
    heads = torch.stack([x, 2 * x])
    found = layer(heads, index, dim_size=3, weight=times.double())
    assert_same(found[1], layer(*copies(2 * x, index, times), dim_size=3))


def test_a_product_of_transforms():
    """Weights may be differentiated by torch.func."""
    layer = make_layer("any module")
    x, index, _ = make_batch((3, 2), 1)
    weight = torch.linspace(0, 2, 5, dtype=x.dtype)

    def total(weight):
        return layer(x, index, dim_size=2, weight=weight).sum()

    expected = torch.autograd.functional.jacobian(total, weight)
    assert_same(torch.func.grad(total)(weight), expected)


def test_compiled():
    x, index, times = make_batch((3, 2), 1)
    layer = make_layer("any module", steps=2)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    expected = layer(*copies(x, index, times), dim_size=2)
    assert_same(compiled(x, index, dim_size=2, weight=times.double()), expected)


@pytest.mark.parametrize("value", [-1.0, NAN, float("inf")])
def test_values_that_cannot_be_read(value, monkeypatch):
    """Its set becomes invalid, and no other."""
    monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: False)
    x, index, _ = make_batch((3, 2), 1)
    weight = torch.ones_like(x[:, 0])
    weight[(index == 0).nonzero()[0]] = value
    layer = make_layer()
    y = layer(x, index, dim_size=2, weight=weight.requires_grad_())
    assert y[0].isnan().all()
    assert_same(y[1:], layer(x[index == 1]))
    y[1].sum().backward()
    assert weight.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


X, INDEX, ONES = torch.zeros(5, 3), torch.tensor([0, 0, 1, 1, 1]), torch.ones(5)
JAGGED = torch.nested.nested_tensor([X[:2], X[2:]], layout=torch.jagged)
REFUSED = {
    "a list": (TypeError, {"weight": [1.0] * 5}, "weight is a list, expected a tensor"),
    "integers": (TypeError, {"weight": INDEX}, "weight has dtype torch.int64"),
    "too short": (ValueError, {"weight": ONES[:4]}, r"weight has shape \[4\], expected \[5\]"),
    "negative": (ValueError, {"weight": ONES - 2}, "weight has the value -1.0, expected finite"),
    "not finite": (ValueError, {"weight": ONES / 0}, "weight has the value inf, expected finite"),
    "padded": (
        ValueError, {"x": X[None], "weight": ONES}, r"weight has shape \[5\], expected \[1, 5\]",
    ),
    "nested otherwise": (
        ValueError,
        {"x": JAGGED, "weight": torch.nested.nested_tensor([ONES[:3], ONES[3:]],
                                                            layout=torch.jagged)},
        "weight is nested unlike x",
    ),
    "elsewhere": (ValueError, {"weight": ONES.to("meta")}, "weight is on meta and x on cpu"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    kind, options, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        EquilibriumAggregation(3, 2)(**{"x": X, **options})


@pytest.mark.parametrize("name", REFUSING)
def test_rivals_that_refuse(name):
    rival = AGGREGATIONS[name](3, 2)
    with pytest.raises(ValueError, match=f"{type(rival).__name__} cannot weigh elements"):
        rival(X, INDEX, weight=ONES)


def test_every_rival_is_tested():
    assert {*RIVALS, *REFUSING, "equilibrium", "scaled-sum"} == {*AGGREGATIONS}


def test_live_sets_without_weights_refuse_some():
    live = equipool.live.LiveSets(converging().float(), X, INDEX)
    with pytest.raises(ValueError, match="weight is given, expected none"):
        live.add(X[:1], 0, ONES[:1])
