"""A set that is read chunk by chunk gives what it gives as a whole."""

import threading
from itertools import cycle, pairwise

import numpy
import pytest
import torch
from torch import nn

from cases import SCALINGS, Quadratic, SumStart, assert_near, make_layer
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    FixedSteps,
    Implicit,
    LearnedStart,
    Nesterov,
    Newton,
    ResNetPotential,
    SafeguardedNesterov,
    SquaredNorm,
    StronglyConvexNesterov,
    ToTolerance,
    Truncated,
    Unrolled,
)
from equipool.large import Passes, chunked, solve_chunks
from known_minima import Sum

NAN = float("nan")
CUTS = {"one": [], "two": [17], "many": [1, 2, 3, 9, 20, 30], "with empty ones": [0, 0, 11, 11, 40]}
METHODS = {
    "unrolled": (Unrolled(), FixedSteps(6)),
    "truncated": (Truncated(3), FixedSteps(6)),
    "truncated, to a tolerance": (Truncated(3), ToTolerance(1e-3, 100)),
    "unrolled, to a tolerance": (Unrolled(), ToTolerance(1e-2, 40)),
    "implicit": (Implicit(), ToTolerance(1e-2, 60)),
    "implicit that falls back": (Implicit(), FixedSteps(3)),
}


@pytest.fixture
def batch():
    """40 elements of four sets, in no order; the last set is empty."""
    torch.manual_seed(1)
    return torch.randn(40, 3, dtype=torch.float64), torch.randint(3, (40,))


def cut(x, index=None, cuts=()):
    ends = [0, *cuts, len(x)]
    parts = [slice(a, b) for a, b in pairwise(ends)]
    return [x[part] if index is None else (x[part], index[part]) for part in parts]


def outcome(solution, modules):
    """All that a solution gives, with the gradients of a loss of all of it."""
    for module in modules:
        module.zero_grad()
    weights = torch.linspace(-1, 1, solution.y.numel(), dtype=solution.y.dtype)
    loss = (weights * solution.y.nan_to_num().flatten()).sum() + 0.1 * solution.aux_loss
    diagnosed = solution._diagnostics is not None
    if diagnosed:
        loss = loss + 0.2 * solution.energy.nan_to_num().sum()
    loss.backward()
    found = {"y": solution.y.detach(), "aux_loss": solution.aux_loss.detach()}
    names = ("num_steps", "finite", "occupied", "fallback")
    for name in (*names, *(("energy", "residual", "converged") if diagnosed else ())):
        found[name] = getattr(solution, name).detach().double()
    for number, module in enumerate(modules):
        learned = ((n, p) for n, p in module.named_parameters() if p.requires_grad)
        found |= {f"{number}.{n}": p.grad.clone() for n, p in learned}
    return found


def assert_same(found, expected, tolerance=1e-10):
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name].isnan(), expected[name].isnan()), name
        assert_near(found[name].nan_to_num(), expected[name].nan_to_num(), tolerance)


def assert_agrees(layer, x, index, cuts, tolerance=1e-10):
    expected = outcome(layer.solve(x, index, dim_size=4), [layer])
    found = outcome(solve_chunks(layer, cut(x, index, cuts), dim_size=4), [layer])
    assert_same(found, expected, tolerance)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_any_cuts(batch, cuts):
    assert_agrees(make_layer(start=LearnedStart(4)), *batch, cuts)


@pytest.mark.parametrize(("method", "scaling"), list(zip(METHODS, cycle(SCALINGS))))
def test_any_differentiation_and_scaling(batch, method, scaling):
    layer = make_layer(start=LearnedStart(4), scaling=scaling, learning_rate=0.01)
    layer.differentiation, layer.steps = METHODS[method]
    assert_agrees(layer, *batch, CUTS["many"])


@pytest.mark.parametrize(
    ("potential", "solver"),
    [
        (lambda: ResNetPotential(3, 3, (7, 5), factored=False), SafeguardedNesterov(0.05)),
        (lambda: ConvexPotential(3, 3, (6, 5)), Newton()),
        (Quadratic, Nesterov(0.05, 0.5, max_step=0.5, curvature_safe=True)),  # nothing to train
        (Sum, Nesterov(0.02, 0.5)),
    ],
    ids=["by autograd", "convex", "a user's own", "linear in y"],
)
def test_any_potential_and_solver(batch, potential, solver):
    torch.manual_seed(3)
    layer = EquilibriumAggregation(3, 3, potential=potential(), solver=solver).double()
    layer.differentiation, layer.steps = METHODS["truncated"]
    assert_agrees(layer, *batch, CUTS["many"])


def test_bounds_are_added_up(batch):
    """So that the steps differ, but not the minimum."""
    torch.manual_seed(3)
    layer = EquilibriumAggregation(
        3, 2, potential=ConvexPotential(3, 2, (6, 5)), regularizer=SquaredNorm(1.0),
        solver=StronglyConvexNesterov(), steps=ToTolerance(1e-12, 5000),
        differentiation=Implicit("cholesky"),
    ).double()  # fmt: skip
    x, index = batch
    whole, parts = layer.solve(x, index), solve_chunks(layer, cut(x, index, [9, 20]), dim_size=3)
    assert whole.converged.all()
    assert (parts.error_bound >= whole.error_bound * 0.5).all()
    expected, found = outcome(whole, [layer]), outcome(parts, [layer])
    for name in (n for n in expected if n in ("y", "energy") or n.startswith("0.")):
        assert_near(found[name], expected[name], 1e-8)


def test_anything_that_can_be_sliced(batch, tmp_path):
    x, index = batch
    numpy.save(tmp_path / "x.npy", x.numpy())
    for data in (x, numpy.load(tmp_path / "x.npy", mmap_mode="r")):
        chunks = chunked(data, index.int().numpy(), size=13)
        assert [len(part) for part, _ in chunks] == [13, 13, 13, 1]
        found = solve_chunks(make_layer(), chunks, dim_size=3)
        assert_near(found.y, make_layer()(x, index), 1e-10)
    with pytest.raises(ValueError, match="index has 40 elements, expected 39"):
        chunked(x[1:], index)


def test_what_is_not_finite_stays_in_its_set(batch):
    x, index = batch
    layer = make_layer()
    clean = outcome(solve_chunks(layer, cut(x[index != 1], index[index != 1]), dim_size=4), [layer])
    x[(index == 1).nonzero()[0]] = NAN
    assert_agrees(layer, x, index, [3, 20])
    found = solve_chunks(layer, cut(x, index, [20]), dim_size=4)
    assert found.y[1].isnan().all()
    for row in (0, 2, 3):
        assert_near(found.y[row].detach(), clean["y"][row], 1e-10)


class TestEncoder:
    def make(self):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()

    @pytest.mark.parametrize("method", ["unrolled", "truncated, to a tolerance", "implicit"])
    def test_is_trained(self, batch, method):
        x, index = batch
        encoder, layer = self.make(), make_layer(learning_rate=0.01)
        layer.differentiation, layer.steps = METHODS[method]
        expected = outcome(layer.solve(encoder(x), index), [layer, encoder])
        chunks = cut(x, index, CUTS["many"])
        found = solve_chunks(layer, chunks, dim_size=3, encoder=encoder)
        assert_same(outcome(found, [layer, encoder]), expected)

    def test_what_is_not_finite_does_not_reach_its_gradients(self, batch):
        x, index = batch
        encoder, layer = self.make(), make_layer()
        x[0] = NAN
        kept = index != index[0]
        expected = outcome(layer.solve(encoder(x[kept]), index[kept], dim_size=3), [encoder])
        found = solve_chunks(layer, cut(x, index, [4]), dim_size=3, encoder=encoder)
        found = outcome(found, [encoder])
        for name in (n for n in expected if n.startswith("0.")):
            # The loss of the set that is left out is constant, but in the energy of an empty one.
            assert_near(found[name], expected[name], 1e-10)


def test_hooks_of_parameters_run_once_with_the_sum_of_all_chunks(batch):
    layer, found = make_layer(num_steps=1), []
    layer.potential.linears[0].weight.register_hook(found.append)
    layer(batch[0]).sum().backward()
    solve_chunks(layer, cut(batch[0], cuts=[5, 9, 30])).y.sum().backward()
    expected, one = found
    assert_near(one, expected, 1e-10)


def test_a_parameter_changed_before_the_backward_pass_is_noticed(batch):
    layer = make_layer()
    y = solve_chunks(layer, [batch[0]], diagnostics=False).y
    with torch.no_grad():
        layer.potential.linears[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_second_gradient_is_refused(batch):
    layer = make_layer()
    y, weight = solve_chunks(layer, [batch[0]]).y, layer.potential.linears[0].weight
    (gradient,) = torch.autograd.grad(y.sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_autocast_is_that_of_the_forward_pass(batch):
    x = batch[0].float()
    layer = make_layer(dtype=torch.float32)
    gradients = []
    for call in (lambda: layer(x), lambda: solve_chunks(layer, cut(x, cuts=[20])).y):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = call()
        y.sum().backward()
        gradients.append(layer.potential.linears[0].weight.grad.clone())
    assert_near(gradients[1], gradients[0], 1e-2)


class Reads:
    """Chunks that count how often they are read, and may change."""

    def __init__(self, *passes):
        self.passes, self.count = passes, 0

    def __iter__(self):
        self.count += 1
        yield from self.passes[min(self.count, len(self.passes)) - 1]


def test_how_often_chunks_are_read(batch):
    """Once to count, once a step, and once a step in the backward pass."""
    reads = Reads(cut(batch[0], cuts=[9]))
    solution = solve_chunks(make_layer(num_steps=5), reads, diagnostics=False)
    assert reads.count == 1 + 5
    solution.y.sum().backward()
    assert reads.count == 1 + 5 + 5


X, INDEX = torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
DROPS = EquilibriumAggregation(3, 4, potential=ResNetPotential(3, 4, (7, 5), dropout=0.5)).double()
READS_ELEMENTS = EquilibriumAggregation(3, 3, start=SumStart()).double()


@pytest.mark.parametrize(
    ("chunks", "error", "named", "others"),
    [
        ((x for x in [X]), RuntimeError, "0 elements in this pass and 4", {}),
        (X, ValueError, r"x has shape \[3\]", {}),
        ([], ValueError, "chunks is empty", {}),
        ([X, X[:, :2]], ValueError, "x has 2 channels", {}),
        ([X.float()], TypeError, "x has dtype torch.float32", {}),
        ([X[0]], ValueError, r"x has shape \[3\]", {}),
        ([(X, INDEX)], ValueError, "index has the value 2", {}),
        ([(X, INDEX[:2])], ValueError, r"index has shape \[2\]", {"dim_size": 3}),
        ([X], ValueError, "x without index is one set", {"dim_size": 3}),
        (Reads([X], [X[:3]]), RuntimeError, "3 elements in this pass and 4", {}),
        ([X.clone().requires_grad_()], ValueError, "requires grad", {}),
        ([X], ValueError, "potential's dropout is 0.5", {"layer": DROPS}),
        ([X], ValueError, "SumStart", {"layer": READS_ELEMENTS}),
        ([X], TypeError, "layer is Quadratic", {"layer": Quadratic()}),
        ([X], ValueError, "encoder's dropout is 0.5", {"encoder": nn.Dropout(0.5)}),
        ([X], ValueError, "BatchNorm1d", {"encoder": nn.BatchNorm1d(3).double()}),
        ([X], ValueError, r"returned shape \[12\]", {"encoder": nn.Flatten(0)}),
    ],
)
def test_bad_input_is_named(chunks, error, named, others):
    with pytest.raises(error, match=named):
        solve_chunks(**{"layer": make_layer(), "chunks": chunks} | others)


def test_in_evaluation_mode_dropout_is_fine(batch):
    potential = ResNetPotential(3, 4, (7, 5), dropout=0.5)
    layer = EquilibriumAggregation(3, 4, potential=potential).double().eval()
    found = solve_chunks(layer, [batch[0]], encoder=nn.Dropout(0.5).eval())
    assert_near(found.y, layer(batch[0]), 1e-10)
    assert not potential.training  # nor any other part of the layer


def test_only_empty_chunks():
    layer = make_layer(start=LearnedStart(4, 0.5))
    solution = solve_chunks(layer, [X[:0]] * 2)
    assert torch.equal(solution.y, layer.start.y.unsqueeze(0))
    solution.y.sum().backward()
    assert layer.start.y.grad.eq(1).all()
    assert layer.potential.linears[0].weight.grad.eq(0).all()


class TestReadAhead:
    def alive(self):
        return [t for t in threading.enumerate() if t.name.startswith("equipool-chunks")]

    def test_reads_while_the_caller_works(self):
        read = threading.Event()

        class Chunks:
            def __iter__(self):
                yield X
                read.set()
                yield X[:2]

        reader = iter(Passes(Chunks(), 1, X.device))
        assert torch.equal(next(reader)[0], X)
        assert read.wait(10)
        assert [len(x) for x, _ in reader] == [2]
        assert not self.alive()

    def test_errors_are_passed_on(self):
        class Chunks:
            def __iter__(self):
                yield X
                raise OSError("the disk is gone")

        with pytest.raises(OSError, match="the disk is gone"):
            solve_chunks(make_layer(), Chunks())
        assert not self.alive()

    def test_an_error_of_the_caller_ends_the_thread(self):
        class Fails(nn.Module):
            def forward(self, x):
                raise RuntimeError("no encoder")

        with pytest.raises(RuntimeError, match="no encoder"):
            solve_chunks(make_layer(), [X] * 50, encoder=Fails())
        assert not self.alive()
