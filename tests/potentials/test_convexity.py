"""The convex potential is convex: one minimum, bounded curvature, a certificate."""

import pytest
import torch
from convex_cases import batch, draw_y, each_depth, make_potential, seeds
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_near


def hessians(summed, y):
    """`[num_rows, K, K]`, column by column."""
    product = summed.hessian(y)
    unit = torch.eye(y.shape[1], dtype=y.dtype)
    return torch.stack([product(column.expand_as(y)) for column in unit], -1)


class TestConvexity:
    @each_depth
    @given(seeds, st.floats(0, 2), st.sampled_from([0.1, 1.0, 5.0]))
    def test_curvature_is_within_its_bounds(self, hidden, seed, noise, scale):
        potential = make_potential(hidden, noise, seed)
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
