"""The posterior of a set depends on the set alone, and is marked where there is none."""

import math
import warnings

import pytest
import torch
from torch import nn

from bayesian_regression import WEIGHT, near, observe, precision, regression
from cases import SCALINGS, Quadratic, flatten, make_layer, make_sets, offsets
from equipool import (
    EquilibriumAggregation,
    Newton,
    ResNetPotential,
    SquaredNorm,
    ToTolerance,
    laplace,
)


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
        assert expected.near_minimum.all()
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

    def test_a_set_that_is_not_finite_is_alone_with_it(self, rank):
        layer, (x, index) = self.layer(), flatten(self.sets)
        expected = laplace(layer, x, index, rank=rank)
        x = x.clone()
        x[5, 0] = math.nan  # in the third set
        found = laplace(layer, x, index, rank=rank)
        kept = torch.tensor([0, 1, 3])
        assert found.definite.tolist() == [True, True, False, True]
        assert found.near_minimum.tolist() == [True, True, False, True]
        generator = torch.Generator().manual_seed(0)
        for part in (
            found.mean, found.variance, found.covariance, found.sample(3, generator)[0],
            found.interval(torch.sin).lower,
        ):  # fmt: skip
            assert part[2].isnan().all()
            assert part[kept].isfinite().all()
        near(found.covariance[kept], expected.covariance[kept], 1e-6)


class Sign(nn.Module):
    """Curves upwards or downwards, as the element says."""

    def forward(self, x, y):
        return (x * y.square()).sum(-1)


class TestMarked:
    def test_not_positive_definite(self):
        layer = EquilibriumAggregation(2, 2, potential=Sign(), regularizer=SquaredNorm(0.5))
        x = torch.tensor([[[1.0, 2.0]], [[1.0, -2.0]], [[3.0, 3.0]], [[-1.0, -1.0]]])
        with pytest.warns(UserWarning, match="2 of 4 sets have a Hessian that is not positive"):
            found = laplace(layer, x)
        assert found.definite.tolist() == [True, False, True, False]
        assert found.variance.isnan().all(-1).tolist() == [False, True, False, True]
        torch.testing.assert_close(found.variance[0], 1 / torch.tensor([3.0, 5.0]))
        torch.testing.assert_close(found.mean, torch.zeros(4, 2))

    @pytest.mark.parametrize("scaling", SCALINGS)
    def test_empty_sets_have_the_prior(self, scaling):
        layer = regression(3, scaling)
        _, x = observe(1, 4, 3)
        found = laplace(layer, x[0], torch.ones(4, dtype=torch.long), dim_size=3)
        assert found.definite.all()
        assert found.near_minimum.all()
        prior = torch.eye(3, dtype=torch.float64) / (2 * WEIGHT)
        near(found.covariance[[0, 2]], prior.expand(2, -1, -1))
        assert (found.covariance[1] - prior).abs().max() > 1e-3

    def test_empty_sets_without_a_prior(self):
        layer = EquilibriumAggregation(2, 2, potential=Quadratic(), regularizer=0, solver=Newton())
        with pytest.warns(UserWarning, match="1 of 2 sets .* which empty sets need too"):
            found = laplace(layer, torch.randn(4, 2), torch.zeros(4, dtype=torch.long), dim_size=2)
        assert found.definite.tolist() == [True, False]
        assert found.variance[1].isnan().all()

    def test_no_sets(self):
        found = laplace(regression(2), torch.zeros(0, 4, 3, dtype=torch.float64))
        assert found.covariance.shape == (0, 2, 2)
        assert found.sample(3).shape == (3, 0, 2)
        assert found.interval(torch.sin).upper.shape == (0, 2)

    def test_training_mode_and_autocast_have_no_effect(self):
        layer, x = EquilibriumAggregation(
            3, 2, potential=ResNetPotential(3, 2, dropout=0.5), regularizer=SquaredNorm(3.0),
            solver=Newton(), steps=ToTolerance(1e-4, 60),
        ).train(), torch.randn(9, 3)  # fmt: skip
        expected, state = laplace(layer, x), torch.random.get_rng_state()
        with torch.autocast("cpu", torch.bfloat16):
            found = laplace(layer, x)
        assert layer.training
        assert torch.equal(torch.random.get_rng_state(), state)
        assert torch.equal(found.covariance, expected.covariance)

    def test_a_network_in_bfloat16(self):
        """Its head takes the mean and the samples; variances are better than bfloat16."""
        layer, head = regression(3).bfloat16(), nn.Linear(3, 1).bfloat16()
        x = observe(2, 6, 3)[1].bfloat16()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rounding of y may be too far from the minimum
            found = laplace(layer, x)
        assert torch.equal(found.mean, layer(x))
        assert head(found.sample(4)).dtype == torch.bfloat16
        assert found.variance.dtype == found.interval(head).upper.dtype == torch.float32
        near(found.covariance.double(), precision(x.double()).inverse(), 0.02)


X = observe(30, 4, 2)[1]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda p: laplace(regression(2), X, rank=0), "rank is 0"),
        (lambda p: laplace(regression(2), X, temperature=0.0), "temperature is 0.0"),
        (lambda p: laplace(nn.Linear(2, 2), X), "layer is Linear"),
        (lambda p: p.interval(torch.sin, level=1.0), "level is 1.0"),
        (lambda p: p.interval(lambda y: y[:3]), r"shape \[3, 2\] for y of shape \[30, 2\]"),
        (lambda p: p.interval(lambda y: y.detach()), "does not require grad"),
        (lambda p: p.sample(-1), "num_samples is -1"),
        (lambda p: p.fit_temperature(torch.sin, torch.ones(30)), r"target has shape \[30\]"),
        (lambda p: p.fit_temperature(torch.sin, p.mean, 0.99), "60 targets"),
    ],
)
def test_bad_questions(call, named):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=named):
        call(laplace(regression(2), X))
