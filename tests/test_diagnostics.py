"""`compare_gradients` and `path_independence`: the numbers are right, the layer is left alone."""

import copy
import math

import pytest
import torch
from torch import nn

import equipool
import known_minima
from cases import flatten, make_layer, make_sets
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    FixedSteps,
    Implicit,
    Nesterov,
    SquaredNorm,
    Truncated,
    Unrolled,
)
from equipool.diagnostics import compare_gradients, path_independence, usual_methods
from equipool.diagnostics.gradients import agreement, peak_bytes_of

CPU = torch.device("cpu")
SETS = make_sets((3, 5, 1, 4), dtype=torch.float32)
X, INDEX = flatten(make_sets((3, 5, 1), channels=3))
UNROLLED, ROUGH = {"exact": Unrolled()}, {"rough": Truncated(2)}


@pytest.fixture
def layer():
    return make_layer(dtype=torch.float32)


def rows_of(layer, *call, **named):
    """Timed once. By name."""
    return {row.method: row for row in compare_gradients(layer, *call, repeats=1, **named)}


def mean_layer(learning_rate, num_steps):
    """The mean, by gradient descent on the mean of `|x - y|^2`."""
    return known_minima.mean(3, learning_rate=learning_rate, num_steps=num_steps)


def converging_layer(num_steps):
    torch.manual_seed(0)
    return EquilibriumAggregation(
        3, 4, potential=ConvexPotential(3, 4, hidden=(8,)), steps=num_steps,
        regularizer=SquaredNorm(1.0), solver=Nesterov(0.2, momentum=0.5),
    )  # fmt: skip


class Hill(nn.Module):
    """The gradient vanishes at its maximum, and only the Hessian tells."""

    def forward(self, x, y):
        return -y.square().sum(-1) * (1 + x.square().sum(-1))


def gradients_by_hand(layer, x, index, method, upstream):
    layer, x = copy.deepcopy(layer), x.clone().requires_grad_()
    layer.differentiation = method
    inputs = [*layer.parameters(), x]
    found = torch.autograd.grad((layer(x, index) * upstream).sum(), inputs, allow_unused=True)
    found = [torch.zeros_like(p) if g is None else g for p, g in zip(inputs, found, strict=True)]
    return torch.cat([g.flatten() for g in found[:-1]]).double(), found[-1].flatten().double()


@pytest.mark.parametrize("method", [Unrolled(), Truncated(2)], ids=repr)
def test_gradients_are_those_taken_by_hand(layer, method):
    x, index = flatten(SETS)
    row = rows_of(layer, x, index, methods={"mine": method})["mine"]
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    exact = gradients_by_hand(copy.deepcopy(layer).double(), x.double(), index, Unrolled(), weights)
    found = gradients_by_hand(layer, x, index, method, weights.float())
    for mine, g, e in zip((row.parameters, row.x), found, exact, strict=True):
        assert mine.cosine == pytest.approx(float(g @ e / (g.norm() * e.norm())), abs=1e-9)
        assert mine.relative_error == pytest.approx(float((g - e).norm() / e.norm()), rel=1e-6)


def test_the_exact_method_in_float64_is_exact():
    row = rows_of(make_layer(), X, INDEX, methods=UNROLLED)["exact"]
    assert max(row.parameters.relative_error, row.x.relative_error) < 1e-12
    assert row.fallback is None
    assert row.seconds > 0


def test_a_truncation_whose_error_is_known():
    """For a quadratic energy every step multiplies the distance to the mean by 0.8, so that k of
    T steps have `1 - 0.8^k` of the gradient `1 - 0.8^T` by the elements."""
    layer = mean_layer(0.1, num_steps=6).double()
    found = rows_of(layer, SETS[1].double(), methods={k: Truncated(k) for k in (1, 3, 6)})
    for k, row in found.items():
        assert row.x.cosine == pytest.approx(1)
        expected = (0.8**k - 0.8**6) / (1 - 0.8**6)
        assert row.x.relative_error == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("num_steps", "fraction"), [(0, 0.25), (2, 1.0)])
def test_sets_without_elements_do_not_count(num_steps, fraction):
    """At the start a set of zeros has converged, and the others have not."""
    x, index = flatten([torch.zeros(2, 3), *SETS[:3]])
    layer = mean_layer(0.5, num_steps)
    assert rows_of(layer, x, index, dim_size=9, methods=UNROLLED)["exact"].converged == fraction


def test_usual_methods():
    small, large = (usual_methods(EquilibriumAggregation(3, size)) for size in (16, 17))
    assert list(small) == [*large, "Implicit, Cholesky"]
    found = rows_of(converging_layer(30), SETS[1])
    implicit = [row for name, row in found.items() if name.startswith("Implicit")]
    for row in implicit:  # at a minimum they are exact, and none falls back
        assert row.parameters.relative_error < 1e-2
        assert (row.converged, row.fallback) == (1.0, 0.0)
    found = rows_of(converging_layer(6), SETS[1])  # before it they fall back to the last steps
    assert (found["Implicit, CG"].converged, found["Implicit, CG"].fallback) == (0.0, 1.0)
    expected = found["Truncated(5)"].parameters.cosine
    assert found["Implicit, CG"].parameters.cosine == pytest.approx(expected, abs=1e-5)
    hill = EquilibriumAggregation(3, 3, potential=Hill(), regularizer=0, steps=2)
    row = rows_of(hill, SETS[1], methods={"mine": Implicit()})["mine"]
    assert (row.converged, row.fallback) == (1.0, 1.0)


def test_dropped_units_are_the_same_for_all_methods():
    torch.manual_seed(0)
    potential = equipool.ResNetPotential(3, 4, (8, 6, 3), dropout=0.5)
    layer = EquilibriumAggregation(3, 4, potential=potential, steps=3)
    row = rows_of(layer, *flatten(SETS), methods=UNROLLED)["exact"]
    assert max(row.parameters.relative_error, row.x.relative_error) < 1e-3


def test_the_layer_is_left_alone(layer):
    x, index = flatten(SETS)
    x.requires_grad_()
    method = layer.differentiation = Truncated(2)
    layer(x, index).sum().backward()

    def snapshot():
        gradients = [p.grad for p in layer.parameters()]
        state = torch.random.get_rng_state(), torch.tensor(layer.training)
        return copy.deepcopy((layer.state_dict(), gradients, x.grad, *state))

    before = snapshot()
    expected = rows_of(layer, x, index, methods=UNROLLED)["exact"]
    path_independence(layer, x.detach(), index, steps=(1, 2), num_starts=1)
    with torch.inference_mode():
        found = rows_of(layer, x.detach(), index, methods=UNROLLED)["exact"]
    assert found.parameters == expected.parameters
    assert layer.differentiation is method
    torch.testing.assert_close(snapshot(), before, rtol=0, atol=0)


def test_agreement():
    large = torch.tensor([3e100, 4e100], dtype=torch.float64)
    zero, one = torch.zeros(2), torch.ones(2)
    assert agreement(3 * large, large) == pytest.approx((1.0, 2.0))
    assert agreement(-one, one) == pytest.approx((-1.0, 2.0))
    assert agreement(zero, zero) == agreement(torch.zeros(0), torch.zeros(0)) == (1.0, 0.0)
    assert agreement(zero, one) == (0.0, 1.0)
    assert agreement(one, zero) == (0.0, math.inf)
    for bad in (math.nan, math.inf):
        for pair in ((bad * one, one), (one, bad * one)):
            assert not any(map(math.isfinite, agreement(*pair)))


def test_peak_memory_is_the_most_held_at_a_time():
    held = torch.ones(10**6)

    def step():
        first = held.add(1)
        second = torch.empty(8 * 10**6, dtype=torch.uint8)
        del first
        third = torch.empty(5 * 10**5, dtype=torch.uint8)
        del second, third

    assert peak_bytes_of(step, CPU) == pytest.approx(12 * 10**6, rel=0.01)


@pytest.mark.parametrize("call", [compare_gradients, path_independence])
def test_another_module_is_refused(call):
    with pytest.raises(TypeError, match="layer is Linear"):
        call(nn.Linear(3, 3), SETS[0])


@pytest.mark.gpu
def test_on_a_gpu(layer):
    x, index = flatten(SETS)
    host = compare_gradients(layer, x, index, repeats=1)
    device = compare_gradients(layer.cuda(), x.cuda(), index.cuda(), repeats=2)
    for mine, theirs in zip(device, host, strict=True):
        assert mine.parameters.cosine == pytest.approx(theirs.parameters.cosine, abs=1e-3)
        assert mine.peak_bytes > 0


class TestPathIndependence:
    def test_a_layer_that_reaches_its_minimum(self):
        """Half the way at every step."""
        layer = mean_layer(0.25, num_steps=1).double()
        found = path_independence(layer, X, INDEX, steps=(0, 1, 2, 3, 60), num_starts=4)
        assert [row.num_steps for row in found.rows] == [0, 1, 2, 3, 60]
        assert [row.distance for row in found.rows] == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 0])
        assert found.alignment == pytest.approx(1)
        assert found.start_distance == pytest.approx(0, abs=1e-12)
        assert [row.converged for row in found.rows] == [0, 0, 0, 0, 1]
        means = torch.stack([X[number == INDEX].mean(0) for number in range(3)])
        first = (2 * means).abs().amax(-1).sort().values  # the gradient at zero
        assert found.rows[0].residual == pytest.approx(first[1].item())
        assert found.rows[0].residual_99 == pytest.approx(first[2].item())

    def test_a_layer_that_does_not_move_keeps_its_starts(self):
        layer = mean_layer(0.25, num_steps=1).double()
        layer.start = equipool.LearnedStart(3, 1.0).double()
        found = path_independence(layer, X, INDEX, steps=(0,), num_starts=400)
        assert found.rows[0].distance == 0
        assert abs(found.alignment) < 0.15
        assert found.start_distance == pytest.approx(2**0.5, rel=0.1)  # at right angles

    def test_the_order_of_steps(self):
        layer = make_layer()
        first = path_independence(layer, X, INDEX, steps=(1, 2))
        assert path_independence(layer, X, INDEX, steps=(2, 1, 2)) == first
        layer.steps = FixedSteps(3, tolerance=1e9)  # is kept
        assert path_independence(layer, X, INDEX, steps=(0, 1)).rows[0].converged == 1

    def test_empty_sets_and_sets_that_are_not_finite_are_left_out(self):
        layer = make_layer()
        found = path_independence(layer, X, INDEX, steps=(1, 4))
        x = torch.cat([X, torch.full_like(X[:1], torch.nan)])
        index = torch.cat([INDEX, INDEX.new_tensor([3])])
        more = path_independence(layer, x, index, dim_size=6, steps=(1, 4))
        for row, expected in zip(more.rows, found.rows, strict=True):
            assert row == pytest.approx(expected)
        with pytest.raises(ValueError, match="no set has elements"):
            path_independence(layer, x[-1:], torch.zeros(1, dtype=torch.int64))
