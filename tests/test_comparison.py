"""`compare_gradients`: the numbers are right, and the layer is left alone."""

import copy
import math

import pytest
import torch
from torch import nn

import equipool
from cases import Quadratic, flatten, make_layer, make_sets, offsets
from equipool import EquilibriumAggregation, Implicit, Nesterov, OneStep, Truncated, Unrolled
from equipool.comparison.compare import compare_gradients, usual_methods

SETS = make_sets((3, 5, 1, 4), dtype=torch.float32)


@pytest.fixture
def layer():
    return make_layer(dtype=torch.float32)


def naive_gradients(layer, x, index, method, upstream):
    """Parameters' and elements' gradients, written out."""
    layer = copy.deepcopy(layer)
    layer.differentiation = method
    x = x.clone().requires_grad_()
    y = layer(x, index)
    inputs = [*(p for p in layer.parameters() if p.requires_grad), x]
    found = torch.autograd.grad((y * upstream).sum(), inputs, allow_unused=True)
    found = [torch.zeros_like(p) if g is None else g for p, g in zip(inputs, found, strict=True)]
    return torch.cat([g.flatten() for g in found[:-1]]).double(), found[-1].flatten().double()


def mean_layer(solver, num_steps):
    """The mean, by gradient descent on the mean of `|x - y|^2`."""
    return EquilibriumAggregation(
        3, 3, potential=Quadratic(), regularizer=equipool.NoRegularizer(), solver=solver,
        scaling="mean", num_steps=num_steps,
    )  # fmt: skip


def naive_agreement(found, exact):
    return (
        float(found @ exact / (found.norm() * exact.norm())),
        float((found - exact).norm() / exact.norm()),
    )


class TestNumbers:
    @pytest.mark.parametrize("method", [Unrolled(), Truncated(2), OneStep()], ids=repr)
    def test_are_those_of_gradients_taken_by_hand(self, layer, method):
        x, index = flatten(SETS)
        torch.manual_seed(3)
        head = nn.Linear(4, 1)

        def loss(y):
            return head(y).square().sum()

        (row,) = compare_gradients(layer, x, index, methods=[method], loss=loss, repeats=1).rows
        y = layer(x, index).detach().requires_grad_()
        (upstream,) = torch.autograd.grad(loss(y), y)
        exact = naive_gradients(
            copy.deepcopy(layer).double(), x.double(), index, Unrolled(), upstream.double()
        )
        found = naive_gradients(layer, x, index, method, upstream)
        for mine, *theirs in zip((row.parameters, row.x), found, exact, strict=True):
            cosine, error = naive_agreement(*theirs)
            assert mine.cosine == pytest.approx(cosine, abs=1e-9)
            assert mine.relative_error == pytest.approx(error, rel=1e-6)

    def test_of_the_exact_way_in_float64_are_exact(self):
        x, index = flatten(make_sets((3, 5)))
        (row,) = compare_gradients(make_layer(), x, index, methods=[Unrolled()], repeats=1).rows
        assert row.method == "Unrolled()"
        for found in (row.parameters, row.x):
            assert found.cosine == pytest.approx(1, abs=1e-12)
            assert found.relative_error < 1e-12
        assert row.fallback is None

    def test_of_a_truncation_whose_error_is_known(self):
        """For a quadratic energy every step multiplies the distance to the mean by 0.8, so that k
        of T steps have `1 - 0.8^k` of the gradient `1 - 0.8^T` by the elements."""
        layer = mean_layer(Nesterov(0.1, momentum=0.0), num_steps=6).double()
        methods = [Truncated(k) for k in (1, 3, 6)]
        found = compare_gradients(layer, SETS[1].double(), methods=methods, repeats=1)
        for k, row in zip((1, 3, 6), found.rows, strict=True):
            assert row.x.cosine == pytest.approx(1)
            expected = (0.8**k - 0.8**6) / (1 - 0.8**6)
            assert row.x.relative_error == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize(("num_steps", "fraction"), [(0, 0.25), (2, 1.0)])
    @pytest.mark.parametrize("dim_size", [None, 9])
    def test_fraction_converged(self, num_steps, fraction, dim_size):
        """At the start a set of zeros has converged, and the others have not; sets without elements
        do not count."""
        layer = mean_layer(Nesterov(0.5, momentum=0.0), num_steps)
        x, index = flatten([torch.zeros(2, 3), *SETS[:3]])
        methods = [Unrolled()]
        found = compare_gradients(layer, x, index, dim_size=dim_size, methods=methods, repeats=1)
        assert found.rows[0].converged == fraction

    def test_every_layout_has_the_same(self, layer):
        nested = torch.nested.nested_tensor(SETS, layout=torch.jagged)
        x, index = flatten(SETS)
        mask = torch.arange(5) < torch.tensor([len(s) for s in SETS])[:, None]
        found = [
            compare_gradients(layer, *call, methods=[Truncated(2)], repeats=1, **layout)
            for call, layout in (
                ((x, index), {"dim_size": 4}),
                ((x,), {"ptr": offsets(SETS)}),
                ((nested.to_padded_tensor(0.0),), {"mask": mask}),
                ((nested,), {}),
            )
        ]
        (expected,) = found[0].rows
        for other in found:
            (row,) = other.rows
            assert row.parameters.cosine == pytest.approx(expected.parameters.cosine, abs=1e-5)
            assert row.x.relative_error == pytest.approx(expected.x.relative_error, rel=1e-4)
            assert other.setting == found[0].setting

    def test_of_what_is_not_finite_say_so(self, layer):
        found = compare_gradients(
            layer, SETS[0], methods=[OneStep()], loss=lambda y: math.nan * y.sum(), repeats=1
        )
        assert math.isnan(found.rows[0].parameters.cosine)
        assert "not finite" in str(found)

    def test_of_a_layer_without_parameters(self):
        layer = mean_layer(Nesterov(0.1, learnable=False), num_steps=2)
        found = compare_gradients(layer, SETS[0], methods=[Unrolled()], repeats=1)
        assert found.rows[0].parameters is None
        assert found.rows[0].x.cosine == pytest.approx(1)

    def test_frozen_parameters_are_left_out(self, layer):
        free = compare_gradients(layer, SETS[0], methods=[OneStep()], repeats=1).rows[0]
        for name, parameter in layer.potential.named_parameters():
            parameter.requires_grad_("linears.0" in name)
        layer.solver.requires_grad_(False)
        layer.regularizer.requires_grad_(False)
        frozen = compare_gradients(layer, SETS[0], methods=[OneStep()], repeats=1).rows[0]
        assert frozen.x == free.x
        assert frozen.parameters != free.parameters


class TestTheLayerIsLeftAlone:
    def snapshot(self, layer, x):
        return copy.deepcopy(
            (layer.state_dict(), [p.grad for p in layer.parameters()], x.grad, x.requires_grad,
             torch.random.get_rng_state(), layer.num_steps, layer.training)
        )  # fmt: skip

    def test_with_its_gradients_and_the_random_state(self, layer):
        x, index = flatten(SETS)
        x.requires_grad_()
        method = layer.differentiation = Truncated(2)
        layer(x, index).sum().backward()
        before = self.snapshot(layer, x)
        compare_gradients(layer, x, index, repeats=1, loss=lambda y: (y * torch.rand(4)).sum())
        assert layer.differentiation is method
        torch.testing.assert_close(self.snapshot(layer, x), before, rtol=0, atol=0)

    def test_default_loss_does_not_depend_on_the_random_state(self, layer):
        found = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            found.append(compare_gradients(layer, SETS[0], methods=[OneStep()], repeats=1).rows[0])
        assert found[0].parameters == found[1].parameters

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_works_where_gradients_are_off(self, layer, mode):
        expected = compare_gradients(layer, *flatten(SETS), methods=[OneStep()], repeats=1).rows[0]
        with mode():
            found = compare_gradients(layer, *flatten(SETS), methods=[OneStep()], repeats=1).rows[0]
        assert found.parameters == expected.parameters

    def test_under_autocast_the_exact_one_is_exact(self, layer):
        with torch.autocast("cpu", torch.bfloat16):
            (row,) = compare_gradients(layer, SETS[1], methods=[Unrolled()], repeats=1).rows
        assert 1e-4 < row.parameters.relative_error < 0.5


class TestErrors:
    def test_layer_of_another_kind(self):
        with pytest.raises(TypeError, match=r"layer is Linear, expected"):
            compare_gradients(nn.Linear(3, 3), SETS[0])

    @pytest.mark.parametrize("repeats", [0, True, 1.5])
    def test_repeats(self, layer, repeats):
        with pytest.raises((TypeError, ValueError), match=f"repeats is {repeats!r}"):
            compare_gradients(layer, SETS[0], repeats=repeats)

    @pytest.mark.parametrize(
        ("loss", "message"),
        [
            (lambda y: y, r"loss returned \(1, 4\)"),
            (lambda y: 1.0, "loss returned float"),
            (lambda y: y.detach().sum(), "does not depend on y"),
            (lambda y: torch.ones((), requires_grad=True) * 2, "does not depend on y"),
        ],
    )
    def test_loss(self, layer, loss, message):
        with pytest.raises(ValueError, match=message):
            compare_gradients(layer, SETS[0], loss=loss)


class TestUsualMethods:
    def test_exact_linear_algebra_is_for_small_outputs(self):
        small, large = (usual_methods(EquilibriumAggregation(3, size)) for size in (16, 17))
        assert list(small) == [*large, "Implicit, Cholesky"]
        assert {type(method) for method in large.values()} == {
            Unrolled,
            Truncated,
            OneStep,
            Implicit,
        }

    def test_implicit_gradients_ask_for_the_tolerance_of_the_layer(self):
        methods = usual_methods(
            EquilibriumAggregation(3, 4, steps=equipool.Fixed(tolerance=1e-5))
        ).values()
        assert {method.tolerance for method in methods if isinstance(method, Implicit)} == {1e-5}

    def test_at_a_minimum_the_implicit_ones_are_exact_and_nothing_falls_back(self):
        layer = converging_layer(num_steps=30)
        found = {row.method: row for row in compare_gradients(layer, SETS[1], repeats=1).rows}
        assert len(found) == 6
        for name in ("Implicit, CG", "Implicit, Neumann", "Implicit, Cholesky"):
            assert found[name].parameters.relative_error < 1e-2
            assert (found[name].converged, found[name].fallback) == (1.0, 0.0)
        assert found["OneStep"].parameters.relative_error > 0.1

    def test_before_the_minimum_they_fall_back_to_the_last_steps(self):
        found = compare_gradients(converging_layer(num_steps=6), SETS[1], repeats=1)
        rows = {row.method: row for row in found.rows}
        assert (rows["Implicit, CG"].converged, rows["Implicit, CG"].fallback) == (0.0, 1.0)
        expected = rows["Truncated(5)"].parameters.cosine
        assert rows["Implicit, CG"].parameters.cosine == pytest.approx(expected, abs=1e-5)
        assert "100 %" in str(found)

    def test_what_the_backward_pass_finds_out_is_counted(self):
        """At a maximum the gradient vanishes, and only the Hessian tells."""
        layer = EquilibriumAggregation(3, 3, potential=Hill(), regularizer=equipool.NoRegularizer())
        found = compare_gradients(layer, SETS[1], methods={"mine": Implicit()}, repeats=1)
        (row,) = found.rows
        assert (row.method, row.converged, row.fallback) == ("mine", 1.0, 1.0)


class Hill(nn.Module):
    def forward(self, x, y):
        return -y.square().sum(-1) * (1 + x.square().sum(-1))


def converging_layer(num_steps):
    torch.manual_seed(0)
    return EquilibriumAggregation(
        3, 4, potential=equipool.ConvexPotential(3, 4, hidden=(8,)), num_steps=num_steps,
        regularizer=equipool.SquaredNorm(1.0), solver=Nesterov(0.2, momentum=0.5),
    )  # fmt: skip


def test_units_that_are_dropped_are_the_same_for_all_ways():
    torch.manual_seed(0)
    potential = equipool.ResNetPotential(3, 4, (8, 6, 3), dropout=0.5)
    layer = EquilibriumAggregation(3, 4, potential=potential, num_steps=3)
    x, index = flatten(SETS)
    (row,) = compare_gradients(layer, x, index, methods=[Unrolled()], repeats=1).rows
    assert row.parameters.relative_error < 1e-3
    assert row.x.relative_error < 1e-3


@pytest.mark.gpu
def test_on_a_gpu(layer):
    x, index = flatten(SETS)
    host = compare_gradients(layer, x, index, repeats=1)
    device = compare_gradients(layer.cuda(), x.cuda(), index.cuda(), repeats=2)
    assert "cuda" in device.setting
    for mine, theirs in zip(device.rows, host.rows, strict=True):
        assert mine.parameters.cosine == pytest.approx(theirs.parameters.cosine, abs=1e-3)
        assert mine.peak_bytes > 0
        assert 0 < mine.seconds.fastest <= mine.seconds.slowest
