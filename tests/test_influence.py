"""The influence of elements, against deleting them."""

import pytest
import torch
from torch import nn

import known_minima
from cases import SCALINGS, Quadratic, assert_near, flatten, make_sets, offsets
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    GradientDescent,
    LearnedStart,
    Newton,
    ResNetPotential,
    SafeguardedNesterov,
    SquaredNorm,
    ToTolerance,
    influence,
)

SIZES = (6, 1, 0, 9)
SETS = make_sets(SIZES)
X, INDEX = flatten(SETS)
METHODS = ("newton", "exact")

each_method = pytest.mark.parametrize("method", METHODS)
each_scaling = pytest.mark.parametrize("scaling", SCALINGS)


def quadratic(scaling="log", weight=0.0, start=0.0):
    """Its minimum is the mean, drawn to zero by the regulariser."""
    return EquilibriumAggregation(
        3, 3, potential=Quadratic(), scaling=scaling, solver=Newton(), steps=5,
        regularizer=SquaredNorm(weight, learnable=False), start=LearnedStart(3, start),
    ).double().eval()  # fmt: skip


def convex(scaling="log", out_channels=4, start=None):
    torch.manual_seed(0)
    return EquilibriumAggregation(
        3, out_channels, potential=ConvexPotential(3, out_channels, (8, 8)), scaling=scaling,
        regularizer=SquaredNorm(0.5), solver=SafeguardedNesterov(), start=start,
        steps=ToTolerance(1e-7, max_steps=3000),
    ).double().eval()  # fmt: skip


def curved(scaling="log"):
    """The paper's potential, with a regulariser that is strong enough for one minimum."""
    torch.manual_seed(0)
    layer = EquilibriumAggregation(
        3, 4, potential=ResNetPotential(3, 4, (16, 16, 4)), regularizer=SquaredNorm(30.0),
        solver=SafeguardedNesterov(), steps=ToTolerance(1e-7, max_steps=3000), scaling=scaling,
    )  # fmt: skip
    return layer.double().eval()


def without(layer, removed):
    """The outputs if these elements had never been there, from the layer's own start."""
    with torch.no_grad():
        return layer(X[~removed], INDEX[~removed], dim_size=len(SIZES))


def deletions(layer):
    """What each element changes: the output with it minus that without it."""
    y = layer(X, INDEX, dim_size=len(SIZES)).detach()
    single = torch.eye(len(X), dtype=torch.bool)
    rows = [y[i] - without(layer, removed)[i] for removed, i in zip(single, INDEX, strict=True)]
    return torch.stack(rows)


def found_by(layer, **more):
    return influence(layer, X, INDEX, dim_size=len(SIZES), **more)


class TestQuadratic:
    """One Newton step is exact."""

    @each_method
    @each_scaling
    def test_the_mean_moves_by_a_known_amount(self, method, scaling):
        found = found_by(quadratic(scaling), method=method)
        for x, i in zip(X, INDEX, strict=True):
            others = SETS[i]
            row = found.change[(x == X).all(-1)].squeeze(0)
            n, mean = len(others), others.mean(0)
            assert_near(row, (x - mean) / (n - 1) if n > 1 else mean, 1e-9)
        assert found.solved.all()
        assert found.converged.all()
        assert found.effect is None

    @pytest.mark.parametrize(
        ("scaling", "ratio"),
        [
            ("log", torch.ones_like),
            ("log-mean", lambda n: n / torch.log2(n + 1)),
            ("sum", torch.ones_like),
            ("mean", lambda n: n),
        ],
    )
    def test_the_number_of_elements_weighs_the_regulariser(self, scaling, ratio):
        """The minimum of r w y^2 + sum (x - y)^2 is sum x / (n + r w)."""
        found = found_by(quadratic(scaling, weight=0.7))
        totals = torch.stack([x.sum(0) for x in SETS])[INDEX]
        n = torch.tensor(SIZES, dtype=torch.float64)[INDEX].unsqueeze(-1)
        left = (totals - X) / (n - 1 + 0.7 * ratio(n - 1))
        expected = totals / (n + 0.7 * ratio(n)) - left
        several = n.squeeze(-1) > 1
        assert_near(found.change[several], expected[several], 1e-9)

    def test_the_regulariser_weighs_the_same_in_a_large_set(self):
        """The number of elements, 1 / (1 / n), is not exact in single precision."""
        n = 200_000
        x = torch.linspace(-1, 3, n).unsqueeze(-1).expand(-1, 3)
        groups = torch.arange(n).sign() + (torch.arange(n) > n // 2)  # the first one, and halves
        found = influence(quadratic("mean", weight=0.7).float(), x, groups=groups)
        expected = (x[0] - x.double().mean(0)) / (1.7 * (n - 1))
        assert_near(n * found.change[0].double(), n * expected, 1e-3)

    def test_what_the_search_left_is_no_change(self):
        """Far from the minimum, the Newton steps of a quadratic are exact all the same."""
        layer = quadratic()
        expected = found_by(layer).change
        layer.solver, layer.steps = GradientDescent(1e-3).double(), 3
        with pytest.warns(UserWarning, match="have not converged"):
            found = found_by(layer)
        several = INDEX != 1
        assert_near(found.change[several], expected[several], 1e-9)


class TestDeletion:
    @pytest.mark.parametrize(
        ("make", "scaling"), [(curved, "log"), *((convex, scaling) for scaling in SCALINGS)]
    )
    def test_both_methods(self, make, scaling):
        layer = make(scaling)
        expected, several = deletions(layer), INDEX != 1
        found = found_by(layer, method="exact")
        assert_near(found.change, expected, 1e-5)
        assert found.solved.all()
        # In sets of several elements a step is an approximation.
        error = (found_by(layer).change - expected)[several].norm()
        assert float(error / expected[several].norm()) < 0.1

    @each_method
    def test_groups_are_deleted_together(self, method):
        layer = convex()
        groups = torch.tensor([7, -1, 7, 7, -1, -1, 7, 7, 7, -1, 2, 2, -1, -1, -1, -1])
        found = found_by(layer, groups=groups, method=method)
        pairs = list(zip(found.set_index.tolist(), found.group_index.tolist(), strict=True))
        assert pairs == sorted({(int(i), int(g)) for i, g in zip(INDEX, groups, strict=True)})
        y = layer(X, INDEX, dim_size=len(SIZES)).detach()
        for (i, group), change in zip(pairs, found.change, strict=True):
            expected = y[i] - without(layer, (i == INDEX) & (groups == group))[i]
            tolerance = 1e-5 if method == "exact" else 0.1 * float(expected.abs().max())
            assert_near(change, expected, tolerance)

    def test_a_whole_set_as_a_group_leaves_its_start(self):
        layer = convex(start=LearnedStart(4, 0.5))
        found = found_by(layer, groups=torch.zeros_like(INDEX))
        y = layer(X, INDEX, dim_size=len(SIZES))[found.set_index]
        assert found.set_index.tolist() == [0, 1, 3]
        assert_near(y - found.change, torch.full_like(y, 0.5), 1e-12)


class TestLinearAlgebra:
    @pytest.mark.parametrize("scaling", SCALINGS)
    def test_both_solvers_agree(self, scaling, monkeypatch):
        layer, found = convex(scaling), []
        for largest in (0, 99):
            monkeypatch.setattr("equipool.leave_one_out.newton.SMALL_OUTPUT", largest)
            found.append(found_by(layer).change)
        assert_near(found[0], found[1], 1e-4)

    @pytest.mark.parametrize(
        ("out_channels", "method"), [(3, "newton"), (12, "newton"), (4, "exact")]
    )
    def test_small_blocks_change_nothing(self, out_channels, method, monkeypatch):
        layer, groups = convex(out_channels=out_channels), torch.arange(len(X)) // 2
        whole = {g: found_by(layer, groups=g, method=method) for g in (None, groups)}
        monkeypatch.setattr("equipool.leave_one_out.newton.FLOATS_AT_ONCE", 300)
        monkeypatch.setattr("equipool.leave_one_out.newton.TILE", 2)
        monkeypatch.setattr("equipool.leave_one_out.measure.ELEMENTS_AT_ONCE", 20)
        for g, expected in whole.items():
            found = found_by(layer, groups=g, method=method).change
            assert_near(found, expected.change, 1e-9 if method == "newton" else 1e-7)


class Bumps(nn.Module):
    """Curves upwards near the second feature if the first is positive, else downwards."""

    def forward(self, x, y):
        return x[:, 0] * (1 - torch.cos(y[:, 0] - x[:, 1]))


class TestNotPositiveDefinite:
    layer = EquilibriumAggregation(
        2, 1, potential=Bumps(), regularizer=0, solver=Newton(), steps=20
    ).double()
    # Either of the first two holds up the minimum, which the third would make a maximum.
    x = torch.tensor([[3, 0.1], [2, -0.05], [-4, 0], [1, 0], [1, 0.1]], dtype=torch.float64)

    def test_an_element_that_holds_the_minimum_is_marked(self):
        with pytest.warns(UserWarning, match="2 of 3 removals leave an energy that does not"):
            found = influence(self.layer, self.x[:3])
        assert found.solved.tolist() == [False, False, True]
        assert found.change.isnan().squeeze(-1).tolist() == [True, True, False]
        assert found.ranked().tolist() == [2]


class TestLaws:
    @each_method
    def test_a_set_is_the_same_in_any_batch_and_order(self, method):
        layer = convex()
        expected = found_by(layer, method=method).change
        order = torch.randperm(len(X))
        found = influence(layer, X[order], INDEX[order], dim_size=len(SIZES), method=method)
        assert_near(found.change, expected[order], 1e-7)
        assert torch.equal(found.set_index, INDEX[order])
        alone = torch.cat([influence(layer, x, method=method).change for x in SETS if len(x)])
        assert_near(alone, expected, 1e-7)

    @each_method
    def test_layouts_agree(self, method):
        layer = convex()
        expected = found_by(layer, method=method)
        given = influence(layer, X, ptr=offsets(SETS), method=method)
        assert_near(given.change, expected.change, 1e-9)
        nested = torch.nested.nested_tensor(SETS, layout=torch.jagged)
        assert_near(influence(layer, nested, method=method).change, expected.change, 1e-9)
        x = torch.full((len(SIZES), max(SIZES), 3), torch.nan, dtype=torch.float64)
        mask = torch.arange(max(SIZES)) < torch.tensor(SIZES).unsqueeze(-1)
        x[mask] = X
        padded = influence(layer, x, mask=mask, method=method, function=lambda y: y[:, :2])
        assert padded.effect.shape == (len(SIZES), max(SIZES), 2)
        assert_near(padded.change[mask], expected.change, 1e-9)
        assert not padded.change[~mask].any()
        assert (padded.set_index[~mask] == -1).all()
        assert torch.equal(padded.set_index[mask], INDEX)

    @each_method
    def test_a_set_that_is_not_finite_keeps_it_to_itself(self, method):
        layer = convex()
        function = nn.Linear(4, 1).double()
        expected = found_by(layer, method=method, function=function)
        x = X.clone()
        x[0, 1] = torch.nan
        found = influence(layer, x, INDEX, dim_size=len(SIZES), method=method, function=function)
        first = INDEX == 0
        for name in ("change", "effect"):
            assert getattr(found, name)[first].isnan().all(), name
            assert_near(getattr(found, name)[~first], getattr(expected, name)[~first], 1e-7)
        assert found.converged.tolist() == [False, True, True, True]

    def test_nothing_to_leave_out(self):
        layer = convex()
        found = influence(layer, X[:0], INDEX[:0], dim_size=2, function=lambda y: y.sum(-1))
        assert found.change.shape == (0, 4)
        assert found.effect.shape == (0,)
        assert found.table() == []


class TestFunction:
    @each_method
    def test_the_effect_is_that_of_the_changed_output(self, method):
        layer, head = convex(), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        found = found_by(layer, method=method, function=lambda y: head(y).squeeze(-1))
        y = layer(X, INDEX, dim_size=len(SIZES))
        expected = (head(y[INDEX]) - head(y[INDEX] - found.change)).squeeze(-1)
        assert_near(found.effect, expected.detach(), 1e-9)
        assert not found.effect.requires_grad
        assert torch.equal(found.score, found.effect)

    @pytest.mark.parametrize("inference", [False, True])
    def test_it_leaves_the_layer_and_modes_alone(self, inference):
        layer = curved().train()
        expected = found_by(layer.eval())
        layer.train()
        with torch.inference_mode(inference), torch.autocast("cpu", dtype=torch.bfloat16):
            found = influence(layer, X.clone(), INDEX, dim_size=len(SIZES))
        assert layer.training
        assert all(parameter.grad is None for parameter in layer.parameters())
        assert_near(found.change, expected.change, 1e-9)


class TestMessages:
    @each_method
    def test_a_search_that_stopped_early_is_counted(self, method):
        layer = convex()
        layer.steps = 1
        with pytest.warns(UserWarning, match="converged") as caught:
            found = found_by(layer, method=method)
        number = int((~found.converged).sum())
        assert f"{number} of 4 sets" in str(caught[0].message)
        assert number >= 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"method": "fast"}, r"method is 'fast', expected one of \['newton', 'exact'\]"),
            ({"groups": torch.zeros(2).long()}, r"groups has shape \[2\], expected \[16\]"),
            ({"groups": torch.zeros(16)}, "groups has dtype torch.float32"),
            ({"function": torch.sum}, r"function returned shape \[\] for y of shape"),
            ({"layer": nn.Linear(3, 4)}, "layer is Linear"),
        ],
    )
    def test_wrong_arguments_are_named(self, arguments, message):
        with pytest.raises((ValueError, TypeError), match=message):
            found_by(**{"layer": convex()} | arguments)


class TestRanking:
    def test_rows_are_ranked_by_size(self):
        found = found_by(quadratic(), function=lambda y: y[:, :1])
        effect = found.effect.flatten()
        order = effect.abs().argsort(descending=True)
        assert found.ranked(3).tolist() == order[:3].tolist()
        expected = [(int(INDEX[row]), int(row), float(effect[row])) for row in order[:3]]
        assert found.table(3) == expected
        assert [number for number, _, _ in found.table(of_set=3)] == [3] * SIZES[3]

    def test_groups_norms_and_padding(self):
        by_group = found_by(quadratic(), groups=INDEX % 2)
        assert sorted(row[:2] for row in by_group.table()) == [(0, 0), (1, 1), (3, 1)]
        padded = influence(quadratic(), torch.stack([SETS[0][:3], 9 * SETS[3][:3]]))
        assert {row[:2] for row in padded.table()} == {(b, e) for b in (0, 1) for e in range(3)}
        assert_near(padded.score, padded.change.norm(dim=-1), 1e-12)

    def test_positive_means_that_the_element_speaks_for_it(self):
        x = torch.tensor([[1.0], [2.0], [6.0]])
        found = influence(known_minima.mean(1), x, function=lambda y: y)
        assert found.score.sign().tolist() == [-1, -1, 1]
