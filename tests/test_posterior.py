"""The Laplace posterior: exact where the energy is quadratic, marked where it is none."""

import math

import pytest
import torch
from torch import nn

from cases import Quadratic, flatten, make_layer, make_sets, offsets
from equipool import (
    EquilibriumAggregation,
    Fixed,
    Laplace,
    LearnedStart,
    Newton,
    NoRegularizer,
    RandomSteps,
    SquaredNorm,
    ToTolerance,
    laplace,
)

WEIGHT, NOISE = 0.7, 0.5  # of the regulariser, and of the observations in a regression
DEVIATION = 1 / math.sqrt(2 * WEIGHT)  # of the prior that the regulariser is


class Regression(nn.Module):
    """Elements are rows of features and what was observed there: -log N(b; a y, NOISE^2)."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x, y):
        error = x[:, -1] - (x[:, :-1] * y).sum(-1)
        return self.factor * error.square() / (2 * NOISE**2)


def regression(size, scaling="sum", factor=1.0):
    """Bayesian linear regression. The posterior of its coefficients y is normal."""
    return EquilibriumAggregation(
        size + 1, size, potential=Regression(factor), solver=Newton(), scaling=scaling,
        regularizer=SquaredNorm(factor * WEIGHT, learnable=False), steps=ToTolerance(1e-9, 20),
    ).double().eval()  # fmt: skip


def observe(num_sets, num_elements, size, seed=0):
    """Coefficients from the prior, and observations of them, `[B, N, size + 1]`."""
    torch.manual_seed(seed)
    y = DEVIATION * torch.randn(num_sets, size, dtype=torch.float64)
    features = torch.randn(num_sets, num_elements, size, dtype=torch.float64)
    seen = (features @ y.unsqueeze(-1)).squeeze(-1)
    seen = seen + NOISE * torch.randn_like(seen)
    return y, torch.cat([features, seen.unsqueeze(-1)], dim=-1)


def precision(x, prior=1.0):
    features = x[..., :-1]
    unit = torch.eye(features.shape[-1], dtype=x.dtype)
    return 2 * WEIGHT * prior * unit + features.mT @ features / NOISE**2


def near(found, expected, rtol=1e-9):
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


class TestExact:
    """Bayesian linear regression."""

    @pytest.mark.parametrize(("scaling", "prior"), [("sum", 1), ("log", 1), ("mean", 6)])
    def test_mean_and_covariance(self, scaling, prior):
        """The mean scaling minimises N R + sum F."""
        _, x = observe(4, 6, 3)
        found = laplace(regression(3, scaling), x)
        expected = precision(x, prior)
        near(found.covariance, expected.inverse())
        near(found.variance, expected.inverse().diagonal(dim1=1, dim2=2))
        right = (x[..., :-1].mT @ x[..., -1:]) / NOISE**2
        near(found.mean, torch.linalg.solve(expected, right).squeeze(-1), 1e-8)
        assert found.definite.all()
        assert found.converged.all()

    def test_doubled_elements_are_twice_the_observations(self):
        _, x = observe(3, 5, 2)
        for scaling in ("sum", "log"):
            once, twice = (
                laplace(regression(2, scaling), x.repeat(1, n, 1)).covariance.inverse()
                for n in (1, 2)
            )
            prior = 2 * WEIGHT * torch.eye(2, dtype=torch.float64)
            near(twice - prior, 2 * (once - prior))
        once, twice = (laplace(regression(2, "mean"), x.repeat(1, n, 1)) for n in (1, 2))
        near(twice.covariance, once.covariance / 2)

    def test_temperature_scales_the_covariance(self):
        _, x = observe(2, 4, 3)
        near(
            laplace(regression(3), x, temperature=2.5).covariance,
            2.5 * laplace(regression(3), x).covariance,
        )

    def test_distance_is_that_to_the_minimum(self):
        """A search that stops at zero, seen from the minimum."""
        layer, (_, x) = regression(3), observe(5, 4, 3)
        minimum = laplace(layer, x).mean
        layer.steps = Fixed(0)
        with pytest.warns(UserWarning, match="5 of 5 sets .* standard deviations from y, up to"):
            found = laplace(layer, x, temperature=0.3)
        square = torch.einsum("bi,bij,bj->b", minimum, precision(x) / 0.3, minimum)
        near(found.distance, square.sqrt(), 1e-8)
        assert not found.converged.any()


class TestLowRank:
    def test_exact_for_a_low_rank_plus_a_diagonal(self):
        """Five observations of 40 coefficients: all other directions have the prior alone."""
        _, x = observe(3, 5, 40)
        full, low = (laplace(regression(40), x, rank=rank) for rank in (40, 8))
        near(low.covariance, full.covariance, 1e-6)
        near(low.variance, full.variance, 1e-6)
        assert low.spectrum.vectors.shape == (3, 40, 8)

    def test_default_by_size(self, monkeypatch):
        _, x = observe(2, 3, 6)
        monkeypatch.setattr("equipool.posterior.LARGEST_FULL", 5)
        monkeypatch.setattr("equipool.posterior.RANK", 4)
        assert laplace(regression(6), x).spectrum.values.shape == (2, 4)
        assert laplace(regression(6), x, rank=99).spectrum.values.shape == (2, 6)
        _, x = observe(2, 3, 5)
        assert laplace(regression(5), x).spectrum.values.shape == (2, 5)


class TestSamples:
    @pytest.mark.parametrize("rank", [4, 2])
    def test_mean_and_covariance(self, rank):
        _, x = observe(2, 6, 4)
        posterior = laplace(regression(4), x, rank=rank, temperature=1.7)
        y = posterior.sample(20_000, torch.Generator().manual_seed(0))
        assert y.shape == (20_000, 2, 4)
        scale = posterior.variance.sqrt()
        assert ((y.mean(0) - posterior.mean) / scale).abs().max() < 0.05
        for position in range(2):
            covariance = posterior.covariance[position]
            assert (y[:, position].T.cov() - covariance).norm() < 0.05 * covariance.norm()

    def test_sets_are_independent(self):
        _, x = observe(2, 6, 1)
        y = laplace(regression(1), x).sample(20_000, torch.Generator().manual_seed(0))
        assert y.squeeze(-1).T.corrcoef()[0, 1].abs() < 0.05

    def test_depend_on_the_set_and_its_position_alone(self):
        layer, (_, x) = regression(3), observe(5, 6, 3)
        other = observe(5, 6, 3, seed=1)[1]

        def third(x):
            return laplace(layer, x).sample(7, torch.Generator().manual_seed(4))[:, 2]

        expected = third(x)
        for changed in (
            x[:3], torch.cat([x, other]), torch.cat([other[:2], x[2:3], other[3:]])
        ):  # fmt: skip
            near(third(changed), expected)
        assert (third(other) - expected).abs().max() > 1e-3

    def test_zero_samples(self):
        assert laplace(regression(3), observe(2, 4, 3)[1]).sample(0).shape == (0, 2, 3)


class TestInterval:
    def test_a_linear_function_is_exact(self):
        _, x = observe(4, 5, 3)
        found = laplace(regression(3), x, temperature=2.0)
        weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        centre, lower, upper = found.interval(lambda y: y @ weights + 3, level=0.8, noise=0.3)
        near(centre, found.mean @ weights + 3)
        deviation = (weights @ found.covariance @ weights + 0.3**2).sqrt()
        near((upper - lower) / 2, 1.2815515655446004 * deviation)
        near((upper + lower) / 2, centre)

    def test_several_values_per_set(self):
        _, x = observe(4, 5, 3)
        found = laplace(regression(3), x)
        at = torch.randn(4, 6, 3, dtype=torch.float64)  # its own points for each set
        all_at_once = found.interval(lambda y: (at * y.unsqueeze(1)).sum(-1).view(4, 2, 3).sin())
        assert all_at_once.lower.shape == (4, 2, 3)
        one = found.interval(lambda y: (at[:, 4] * y).sum(-1).sin())
        near(all_at_once.upper[:, 1, 1], one.upper)

    def test_covers_what_it_promises(self):
        """The posterior is exact, so that 90 % of 4,000 intervals cover; five deviations."""
        y, x = observe(4000, 5, 2)
        head = nn.Linear(2, 1).double()
        _, lower, upper = laplace(regression(2), x).interval(head)
        with torch.no_grad():
            truth = head(y)
        assert ((lower <= truth) & (truth <= upper)).double().mean().sub(0.9).abs() < 0.024

    def test_does_not_depend_on_modes(self):
        _, x = observe(2, 4, 3)
        expected = laplace(regression(3), x).interval(torch.sin)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                near(laplace(regression(3), x).interval(torch.sin).upper, expected.upper)


class TestTemperature:
    """The energy is four times that of the model, so that its posterior is too narrow."""

    layer = regression(2, factor=4.0)
    head = staticmethod(lambda y: y.sum(-1))

    def test_is_found_and_gives_the_right_coverage(self):
        y, x = observe(4000, 5, 2)
        fitted = laplace(self.layer, x).fit_temperature(self.head, y.sum(-1))
        assert fitted == pytest.approx(4, rel=0.15)
        warm = laplace(self.layer, x, temperature=3.0)
        assert warm.fit_temperature(self.head, y.sum(-1)) == pytest.approx(fitted)
        y, x = observe(4000, 5, 2, seed=5)
        for temperature, expected in ((1.0, 0.589), (fitted, 0.9)):
            _, lower, upper = laplace(self.layer, x, temperature=temperature).interval(self.head)
            inside = (lower <= y.sum(-1)) & (y.sum(-1) <= upper)
            assert inside.double().mean().item() == pytest.approx(expected, abs=0.04)

    def test_noise_is_left_out_of_it(self):
        y, x = observe(4000, 5, 2)
        target = y.sum(-1) + 0.4 * torch.randn(4000, dtype=torch.float64)
        found = laplace(self.layer, x)
        fitted = found.fit_temperature(self.head, target, noise=0.4)
        assert fitted == pytest.approx(4, rel=0.25)
        assert found.fit_temperature(self.head, target) > 1.3 * fitted

    def test_validation_targets_are_covered_exactly(self):
        y, x = observe(99, 5, 2)
        for level in (0.5, 0.9):
            fitted = laplace(self.layer, x).fit_temperature(self.head, y.sum(-1), level)
            found = laplace(self.layer, x, temperature=fitted * (1 + 1e-9))
            _, lower, upper = found.interval(self.head, level)
            inside = (lower <= y.sum(-1)) & (y.sum(-1) <= upper)
            assert int(inside.sum()) == 100 * level

    def test_missing_targets_are_left_out(self):
        y, x = observe(60, 5, 2)
        target = y.sum(-1)
        expected = laplace(self.layer, x[:50]).fit_temperature(self.head, target[:50])
        target[50:] = torch.nan
        assert laplace(self.layer, x).fit_temperature(self.head, target) == pytest.approx(expected)


@pytest.mark.parametrize("rank", [None, 3])
class TestLaws:
    """The posterior of a set depends on the set alone."""

    sets = make_sets((4, 1, 6, 9))
    potential = make_layer(out_channels=5, scaling="sum").potential

    def layer(self):
        return EquilibriumAggregation(
            3, 5, potential=self.potential, regularizer=SquaredNorm(3.0), solver=Newton(),
            steps=ToTolerance(1e-10, 60),
        ).double()  # fmt: skip

    @staticmethod
    def same(found, expected):
        assert expected.definite.all()
        assert expected.converged.all()
        for name in ("mean", "covariance"):
            near(getattr(found, name), getattr(expected, name), 1e-6)
        near(found.interval(torch.sin).upper, expected.interval(torch.sin).upper, 1e-6)

    def test_layouts_and_order(self, rank):
        layer = self.layer()
        expected = laplace(layer, *flatten(self.sets), rank=rank)
        x, index = flatten(self.sets)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        self.same(laplace(layer, x[order], index[order], rank=rank), expected)
        self.same(laplace(layer, x, ptr=offsets(self.sets), rank=rank), expected)
        padded = nn.utils.rnn.pad_sequence(self.sets, batch_first=True, padding_value=math.nan)
        mask = torch.arange(9) < torch.tensor([[len(one)] for one in self.sets])
        self.same(laplace(layer, padded, mask=mask, rank=rank), expected)
        nested = torch.nested.nested_tensor(self.sets, layout=torch.jagged)
        self.same(laplace(layer, nested, rank=rank), expected)

    def test_padding_that_is_carried_along(self, rank, monkeypatch):
        """As on a GPU, where dropping it would wait for the device."""
        layer, (x, index) = self.layer(), flatten(self.sets)
        expected = laplace(layer, x, index, rank=rank)
        for module in ("layouts", "sets"):
            monkeypatch.setattr(f"equipool.{module}.values_are_at_hand", lambda x: False)
        x = torch.cat([x, torch.full((2, 3), math.nan, dtype=x.dtype)])
        index = torch.cat([index, index.new_tensor([0, 2])])
        mask = torch.arange(len(x)) < len(x) - 2
        self.same(laplace(layer, x, index, mask=mask, dim_size=4, rank=rank), expected)

    def test_alone_and_in_a_batch(self, rank):
        layer = self.layer()
        together = laplace(layer, *flatten(self.sets), rank=rank)
        for position, x in enumerate(self.sets):
            alone = laplace(layer, x, rank=rank)
            near(together.covariance[position], alone.covariance[0], 1e-6)

    def test_a_set_that_is_not_finite_is_alone_with_it(self, rank):
        layer, (x, index) = self.layer(), flatten(self.sets)
        expected = laplace(layer, x, index, rank=rank)
        x = x.clone()
        x[5, 0] = math.nan  # in the third set
        found = laplace(layer, x, index, rank=rank)
        kept = torch.tensor([0, 1, 3])
        assert found.definite.tolist() == [True, True, False, True]
        assert found.converged.tolist() == [True, True, False, True]
        generator = torch.Generator().manual_seed(0)
        for part in (
            found.mean, found.variance, found.covariance, found.sample(3, generator)[0],
            found.interval(torch.sin).lower,
        ):  # fmt: skip
            assert part[2].isnan().all()
            assert part[kept].isfinite().all()
        near(found.covariance[kept], expected.covariance[kept], 1e-6)

    def test_by_differentiating_the_energy_twice(self, rank):
        layer, x = self.layer(), self.sets[2]
        layer.scaling = "sum"
        found = laplace(layer, x)

        def energy(y):
            rows = y.expand(len(x), -1)
            return layer.regularizer(y.unsqueeze(0)).sum() + self.potential(x, rows).sum()

        hessian = torch.autograd.functional.hessian(energy, found.mean[0])
        near(found.covariance[0], hessian.inverse(), 1e-7)


class Sign(nn.Module):
    """Curves upwards or downwards, as the element says."""

    def forward(self, x, y):
        return (x * y.square()).sum(-1)


class TestMarked:
    def test_not_positive_definite(self):
        layer = EquilibriumAggregation(2, 2, potential=Sign(), regularizer=SquaredNorm(0.5))
        x = torch.tensor([[[1.0, 2.0]], [[1.0, -2.0]], [[3.0, 3.0]], [[-1.0, -1.0]]])
        with pytest.warns(UserWarning, match=r"2 of 4 sets \(1, 3\): .*not positive definite"):
            found = laplace(layer, x)
        assert found.definite.tolist() == [True, False, True, False]
        assert found.variance.isnan().all(-1).tolist() == [False, True, False, True]
        torch.testing.assert_close(found.variance[0], 1 / torch.tensor([3.0, 5.0]))
        torch.testing.assert_close(found.mean, torch.zeros(4, 2))
        assert repr(found) == "Laplace(sets=4, definite=2, converged=2, full, temperature=1)"

    def test_many_sets_are_counted(self):
        layer = EquilibriumAggregation(1, 1, potential=Sign(), regularizer=NoRegularizer())
        with pytest.warns(UserWarning, match=r"9 of 9 sets \(0, 1, 2, 3, 4, \.\.\.\)"):
            laplace(layer, -torch.ones(9, 1, 1))

    @pytest.mark.parametrize("scaling", ["log", "sum", "mean"])
    def test_empty_sets_have_the_prior(self, scaling):
        layer = regression(3, scaling)
        _, x = observe(1, 4, 3)
        found = laplace(layer, x[0], torch.ones(4, dtype=torch.long), dim_size=3)
        assert found.definite.all()
        assert found.converged.all()
        prior = torch.eye(3, dtype=torch.float64) / (2 * WEIGHT)
        near(found.covariance[[0, 2]], prior.expand(2, -1, -1))
        assert (found.covariance[1] - prior).abs().max() > 1e-3

    def test_empty_sets_without_a_prior(self):
        layer = EquilibriumAggregation(
            2, 2, potential=Quadratic(), regularizer=NoRegularizer(), solver=Newton()
        )
        with pytest.warns(UserWarning, match=r"1 of 2 sets \(1\): .*which empty sets need too"):
            found = laplace(layer, torch.randn(4, 2), torch.zeros(4, dtype=torch.long), dim_size=2)
        assert found.definite.tolist() == [True, False]
        assert found.variance[1].isnan().all()

    def test_an_empty_set_whose_start_is_not_the_most_likely(self):
        layer = regression(2)
        layer.start = LearnedStart(2, 1.0).double()
        with pytest.warns(UserWarning, match=r"1 of 1 sets"):
            found = laplace(layer, torch.zeros(0, 3, dtype=torch.float64))
        near(found.distance, torch.tensor([2 * math.sqrt(WEIGHT)], dtype=torch.float64))

    def test_no_sets(self):
        found = laplace(regression(2), torch.zeros(0, 4, 3, dtype=torch.float64))
        assert found.covariance.shape == (0, 2, 2)
        assert found.sample(3).shape == (3, 0, 2)
        assert found.interval(torch.sin).upper.shape == (0, 2)

    def test_a_layer_in_training_is_searched_as_in_evaluation(self):
        layer, (_, x) = regression(2).train(), observe(2, 4, 2)
        layer.steps = RandomSteps(1, 4)
        state = torch.random.get_rng_state()
        assert isinstance(laplace(layer, x), Laplace)
        assert layer.training
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_single_precision(self):
        _, x = observe(2, 6, 3)
        found = laplace(regression(3).float(), x.float())
        assert found.covariance.dtype == found.sample(2).dtype == torch.float32
        near(found.covariance.double(), precision(x).inverse(), 1e-4)


class TestMessages:
    x = observe(30, 4, 2)[1]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [({"rank": 0}, "rank is 0, expected an int of 1 or more"),
         ({"temperature": 0.0}, "temperature is 0.0, expected a finite number above 0"),
         ({"temperature": math.nan}, "temperature is nan"),
         ({"temperature": math.inf}, "temperature is inf")],
    )  # fmt: skip
    def test_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            laplace(regression(2), self.x, **arguments)

    def test_not_a_layer(self):
        with pytest.raises(TypeError, match=r"layer is .*expected an instance of Equilibrium"):
            laplace(nn.Linear(2, 2), self.x)

    @pytest.mark.parametrize(
        ("call", "message"),
        [(lambda p: p.interval(torch.sin, level=1.0), "level is 1.0, expected a number between"),
         (lambda p: p.interval(torch.sin, noise=-1.0), "noise is -1.0, expected a finite"),
         (lambda p: p.interval(lambda y: y[:3]), r"shape \[3, 2\] for y of shape \[30, 2\], exp"),
         (lambda p: p.interval(lambda y: 1.0), "function returned a float for y"),
         (lambda p: p.interval(lambda y: y.detach()), "no gradient by y, expected"),
         (lambda p: p.sample(-1), "num_samples is -1"),
         (lambda p: p.fit_temperature(torch.sin, torch.ones(30)), r"shape \[30\], exp.*30, 2"),
         (lambda p: p.fit_temperature(torch.sin, 1.0), "target is a float, expected a tensor"),
         (lambda p: p.fit_temperature(torch.sin, p.mean.sin()), "temperature would be 0, expected"),
         (lambda p: p.fit_temperature(lambda y: 0 * y, p.mean), "temperature would be inf"),
         (lambda p: p.fit_temperature(torch.sin, p.mean, 0.99), "60 targets .* at least 99 to")],
    )  # fmt: skip
    def test_methods(self, call, message):
        posterior = laplace(regression(2), self.x)
        with pytest.raises(ValueError, match=message):
            call(posterior)
