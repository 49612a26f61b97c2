"""The convex potential is convex: one minimum, bounded curvature, a certificate."""

import pytest
import torch
from convex_cases import WEIGHT, batch, draw_y, each_depth, each_scaling, make_potential, seeds
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_near
from equipool import SquaredNorm
from equipool.energy import RowEnergy, scaling_weights


def hessians(summed, y):
    """`[num_rows, K, K]`, column by column."""
    product = summed.hessian(y)
    unit = torch.eye(y.shape[1], dtype=y.dtype)
    return torch.stack([product(column.expand_as(y)) for column in unit], -1)


def train_briefly(potential, seed=0):
    """A few steps of Adam that pull the weights away from where they were drawn."""
    x, sets = batch()
    optimizer = torch.optim.Adam(potential.parameters(), lr=0.1)
    for _ in range(10):
        y = draw_y(sets.num_rows, seed=seed)
        loss = (potential.bind(x, sets).gradient(y) - y.sin()).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return potential


class TestConvexity:
    @each_depth
    @given(seeds, st.floats(0, 2), st.sampled_from([0.1, 1.0, 10.0, 100.0]), st.booleans())
    def test_along_segments(self, hidden, seed, noise, scale, trained):
        potential = make_potential(hidden, noise, seed)
        if trained:
            train_briefly(potential, seed)
        x, a, b = draw_y(50, 3, seed=seed), *(draw_y(50, 4, scale, seed + k) for k in (1, 2))
        with torch.no_grad():
            ends, middle = [potential(x, a), potential(x, b)], potential(x, (a + b) / 2)
        size = max(1.0, float(ends[0].abs().max()), float(ends[1].abs().max()))
        assert (middle <= (ends[0] + ends[1]) / 2 + 1e-13 * size).all()

    def test_not_every_function_of_x_is(self):
        """Convex in y alone: along x it bends both ways."""
        potential = make_potential(noise=1.0)
        a, b = draw_y(200, 3, 3.0, 1), draw_y(200, 3, 3.0, 2)
        y = draw_y(200)
        bend = (potential(a, y) + potential(b, y)) / 2 - potential((a + b) / 2, y)
        assert bend.min() < -1e-2
        assert bend.max() > 1e-2

    @each_depth
    @given(seeds, st.floats(0, 2), st.sampled_from([0.1, 1.0, 5.0]), st.booleans())
    def test_curvature_is_within_its_bounds(self, hidden, seed, noise, scale, trained):
        potential = make_potential(hidden, noise, seed)
        if trained:
            train_briefly(potential, seed)
        x, sets = batch(seed=seed)
        with torch.no_grad():
            summed = potential.bind(x, sets)
        lower, upper = summed.bounds()
        assert lower.shape == upper.shape == (sets.num_rows,)
        assert (lower == 0).all()
        for k in range(20):
            found = hessians(summed, draw_y(sets.num_rows, scale=scale, seed=seed + k))
            assert_near(found, found.mT, 1e-12)
            eigenvalues = torch.linalg.eigvalsh(found)
            rounding = 1e-13 * (1 + upper)
            assert (eigenvalues[:, 0] >= -rounding).all()
            assert (eigenvalues[:, -1] <= upper + rounding).all()

    @pytest.mark.parametrize(
        ("hidden", "noise", "factor"),
        [((64,), 0.0, 1.5), ((64, 64), 0.0, 3.0), ((64, 64), 1.0, 12.0), ((32,) * 3, 0.5, 10.0)],
    )
    def test_the_upper_bound_is_not_absurd(self, hidden, noise, factor):
        """Beside the largest curvature at random points, which is less than the largest of all."""
        potential = make_potential(hidden, noise)
        x, sets = batch((10, 20, 1))
        with torch.no_grad():
            summed = potential.bind(x, sets)
        points = [draw_y(3, scale=s, seed=k) for k in range(30) for s in (0.1, 0.5, 1.0, 3.0)]
        found = torch.stack([torch.linalg.eigvalsh(hessians(summed, y))[:, -1] for y in points])
        assert (summed.bounds().upper <= factor * found.amax(0)).all()

    def test_bounds_have_no_graph_and_no_neighbours(self):
        potential = make_potential()
        x, sets = batch()
        expected = potential.bind(x, sets).bounds().upper
        assert not expected.requires_grad
        assert expected[2] < 1e-30  # the empty set
        x = x.clone()
        x[0] = float("nan")
        found = potential.bind(x, sets).bounds().upper
        assert torch.equal(found[1:], expected[1:])


def make_energy(scaling, hidden=(6, 4), seed=0, noise=0.5):
    """The energy of a batch, and its curvature from below and above: `[num_rows, 1]` each."""
    potential = make_potential(hidden, noise, seed)
    x, sets = batch((3, 1, 8, 2), seed=seed)
    weights = scaling_weights(scaling, sets.counts, torch.float64)
    with torch.no_grad():
        summed = potential.bind(x, sets)
        regularizer = SquaredNorm(WEIGHT, learnable=False).double()
        energy = RowEnergy(summed, regularizer, weights)
    lower = 2 * WEIGHT * weights.regularizer
    return energy, lower, lower + weights.potential * summed.bounds().upper.unsqueeze(-1)


@torch.no_grad()
def minimise_exactly(energy, y):
    """Newton's method, whose steps are halved until the gradient shrinks, in float64."""
    for _ in range(100):
        g = energy.gradient(y)
        size = g.norm(dim=-1, keepdim=True)
        if size.max() < 1e-12:
            return y
        step = torch.linalg.solve(hessians(energy, y), g)
        for _ in range(40):
            worse = energy.gradient(y - step).norm(dim=-1, keepdim=True) >= size
            if not worse.any():
                break
            step = torch.where(worse, step / 2, step)
        y = y - step
    raise AssertionError(f"Newton's method did not converge: {size.flatten()}")


@torch.no_grad()
def descend(energy, upper, y):
    """Plain gradient descent whose step is the inverse of the curvature's upper bound."""
    for _ in range(3000):
        g = energy.gradient(y)
        if g.norm(dim=-1).max() < 1e-11:
            return y
        y = y - g / upper
    raise AssertionError(f"gradient descent did not converge: {g.norm(dim=-1)}")


@each_scaling
class TestOneMinimum:
    @each_depth
    def test_from_anywhere_by_a_step_of_the_bound(self, scaling, hidden):
        energy, _, upper = make_energy(scaling, hidden)
        ends = [descend(energy, upper, draw_y(4, scale=10.0, seed=seed)) for seed in (1, 2)]
        assert_near(ends[0], ends[1], 1e-10)
        assert_near(ends[0], minimise_exactly(energy, draw_y(4)), 1e-10)

    @given(seeds, st.sampled_from([0.1, 1.0, 10.0]))
    def test_every_step_lowers_the_energy_as_much_as_it_must(self, scaling, seed, scale):
        energy, _, upper = make_energy(scaling, seed=seed, noise=1.0)
        y = draw_y(4, scale=scale, seed=seed)
        for _ in range(20):
            g = energy.gradient(y).detach()
            before, y = energy.value(y), y - g / upper
            promised = g.square().sum(-1) / (2 * upper.squeeze(-1))
            assert (energy.value(y) <= before - promised + 1e-12 * (1 + before.abs())).all()

    @given(seeds, st.sampled_from([0.01, 1.0, 10.0]))
    def test_the_certificate_holds(self, scaling, seed, scale):
        energy, lower, _ = make_energy(scaling, seed=seed)
        best = minimise_exactly(energy, draw_y(4))
        y = best + draw_y(4, scale=scale, seed=seed)
        distance = (y - best).norm(dim=-1)
        promised = energy.gradient(y).norm(dim=-1) / lower.squeeze(-1)
        assert (distance <= promised * (1 + 1e-9)).all()
