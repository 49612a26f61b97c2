"""The public handle on a batch's energy, and a solve from a start and for steps of one's own."""

import pytest
import torch

from cases import SCALINGS, assert_near, flatten, make_layer, make_sets
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    NormalStart,
    RandomSteps,
    SafeguardedNesterov,
    ToTolerance,
)
from equipool.energy import Weights

SIZES = (4, 0, 1, 6)


@pytest.fixture
def batch():
    return flatten(make_sets(SIZES))


@pytest.fixture
def y():
    return torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("factored", [True, False])
def test_derivatives_are_those_of_the_value(batch, y, factored):
    energy = make_layer(factored=factored).energy(*batch, dim_size=4)
    (slope,) = torch.autograd.grad(energy(y.requires_grad_()).sum(), y)
    assert_near(energy.gradient(y), slope, 1e-12)
    plain = make_layer(factored=False).energy(*batch, dim_size=4)
    full = torch.func.jacrev(lambda y: plain.gradient(y))(y.detach())
    rows = torch.arange(4)
    assert_near(energy.hessian(y), full[rows, :, rows], 1e-10)
    v = torch.randn_like(y)
    product = torch.einsum("bkl,bl->bk", energy.hessian(y), v)
    assert_near(energy.hessian_product(y, v), product, 1e-12)
    assert_near(energy.hessian_map(y)(v), product, 1e-12)


def test_energy_in_inference_mode(batch, y):
    energy = make_layer().energy(*batch, dim_size=4)
    with torch.inference_mode():
        inside = make_layer().energy(*batch, dim_size=4)
        found = inside(y), inside.gradient(y), inside.hessian(y)
    expected = energy(y), energy.gradient(y), energy.hessian(y)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, 1e-12)


def test_a_set_that_is_not_finite_is_nan_and_leaves_the_others(batch, y):
    x, index = batch
    broken = x.clone()
    broken[0, 0] = torch.inf
    whole, energy = (make_layer().energy(one, index, dim_size=4) for one in (x, broken))
    for name in ("__call__", "gradient", "hessian"):
        found, expected = getattr(energy, name)(y), getattr(whole, name)(y)
        assert found[0].isnan().all()
        assert torch.equal(found[1:], expected[1:])


@pytest.mark.parametrize("scaling", SCALINGS)
def test_bounds_hold_the_curvature(batch, y, scaling):
    potential = ConvexPotential(3, 4, hidden=(8,)).double()
    layer = EquilibriumAggregation(3, 4, potential=potential, scaling=scaling).double()
    energy = layer.energy(*batch, dim_size=4)
    lower, upper = energy.bounds()
    curvatures = torch.linalg.eigvalsh(energy.hessian(y))
    assert bool((curvatures >= lower.unsqueeze(-1) - 1e-12).all())
    assert bool((curvatures <= upper.unsqueeze(-1) + 1e-12).all())
    assert make_layer().energy(*batch, dim_size=4).bounds() is None


def test_reweighted_to_count_each_element_once(batch, y):
    occupied = torch.tensor(SIZES).clamp(max=1).double().unsqueeze(-1)
    plain = make_layer(scaling="sum").energy(*batch, dim_size=4)
    for scaling in ("log", "mean"):
        energy = make_layer(scaling=scaling).energy(*batch, dim_size=4)
        once = energy.reweighted(Weights(occupied, occupied))
        assert_near(once(y), plain(y), 1e-12)
        assert_near(once.gradient(y), plain.gradient(y), 1e-12)


def test_energy_draws_nothing(batch):
    """A process that logs energies must not fall out of step with the others."""
    layer = EquilibriumAggregation(3, 4, steps=RandomSteps(2, 64), start=NormalStart(4)).double()
    assert layer.training
    torch.manual_seed(0)
    before = torch.get_rng_state()
    layer.energy(*batch, dim_size=4)(torch.zeros(4, 4))
    assert torch.equal(torch.get_rng_state(), before)


class TestSolveFromAStart:
    STEPS = ToTolerance(1e-6, max_steps=2000)

    def layer(self):
        layer = make_layer(num_steps=3)
        layer.solver = SafeguardedNesterov()
        return layer

    def test_steps_of_one_call(self, batch):
        layer = self.layer()
        found = layer.solve(*batch, dim_size=4, steps=7)
        longer = self.layer()
        longer.steps = 7
        assert torch.equal(found.y, longer(*batch, dim_size=4))
        assert layer.steps.num_steps == 3
        assert layer.solve(*batch, dim_size=4, steps=self.STEPS).converged.all()

    def test_a_search_goes_on_where_one_ended(self, batch):
        layer = self.layer()
        first = layer.solve(*batch, dim_size=4, steps=self.STEPS)
        again = layer.solve(*batch, dim_size=4, start=first.y, steps=self.STEPS)
        assert torch.equal(again.y, first.y)
        assert torch.equal(layer.solve(*batch, dim_size=4, start=first.y, steps=0).y, first.y)

    def test_a_row_that_is_not_finite_begins_at_the_own_start(self, batch):
        layer = self.layer()
        start = torch.ones(4, 4, dtype=torch.float64)
        start[2, 1] = torch.nan
        found = layer.solve(*batch, dim_size=4, start=start)
        given = layer.solve(*batch, dim_size=4, start=torch.ones(4, 4))
        own = layer.solve(*batch, dim_size=4)
        assert torch.equal(found.y[[0, 1, 3]], given.y[[0, 1, 3]])
        assert torch.equal(found.y[2], own.y[2])
        assert torch.equal(found.y[1], torch.ones(4, dtype=torch.float64))

    def test_gradients_pass_to_the_start(self, batch):
        layer = make_layer(factored=False, num_steps=2)
        start = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)

        def solve(start):
            return layer.solve(*batch, dim_size=4, start=start).y

        assert torch.autograd.gradcheck(solve, start)

    def test_a_start_of_another_shape(self, batch):
        with pytest.raises(ValueError, match=r"start has shape \[3, 4\], expected \[4, 4\]"):
            self.layer().solve(*batch, dim_size=4, start=torch.zeros(3, 4))
