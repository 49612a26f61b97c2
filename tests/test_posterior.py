"""The Laplace posterior of a linear regression, where it is exact: covariance, samples, intervals
and temperature."""

import math

import pytest
import torch

from bayesian_regression import NOISE, near, observe, precision, regression
from equipool import FixedSteps, laplace


class TestExact:
    """Bayesian linear regression."""

    @pytest.mark.parametrize(
        ("scaling", "prior"), [("sum", 1), ("log", 1), ("mean", 6), ("log-mean", 6 / math.log2(7))]
    )
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
        assert found.near_minimum.all()

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
        layer.steps = FixedSteps(0)
        with pytest.warns(UserWarning, match="5 of 5 sets .* standard deviations from y"):
            found = laplace(layer, x, temperature=0.3)
        square = torch.einsum("bi,bij,bj->b", minimum, precision(x) / 0.3, minimum)
        near(found.distance, square.sqrt(), 1e-8)
        assert not found.near_minimum.any()


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
        assert y[:, :, 0].T.corrcoef()[0, 1].abs() < 0.05  # sets are independent

    def test_do_not_depend_on_what_the_other_sets_are(self):
        layer, (_, x) = regression(3), observe(5, 6, 3)
        other = observe(5, 6, 3, seed=1)[1]

        def third(x):
            return laplace(layer, x).sample(7, torch.Generator().manual_seed(4))[:, 2]

        expected = third(x)
        near(third(torch.cat([other[:2], x[2:3], other[3:]])), expected)
        assert (third(other) - expected).abs().max() > 1e-3


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

    def test_validation_targets_are_covered_exactly(self):
        y, x = observe(99, 5, 2)
        more, missing = torch.cat([x, x[:9]]), torch.full((9,), torch.nan).double()
        for level in (0.5, 0.9):
            target = torch.cat([y.sum(-1), missing])  # these are left out
            fitted = laplace(self.layer, more).fit_temperature(self.head, target, level)
            found = laplace(self.layer, x, temperature=fitted * (1 + 1e-9))
            _, lower, upper = found.interval(self.head, level)
            inside = (lower <= y.sum(-1)) & (y.sum(-1) <= upper)
            assert int(inside.sum()) == 100 * level
