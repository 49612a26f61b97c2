"""Random starts: drawn in training, and without effect where the energy has one minimum."""

import torch

from cases import flatten, make_sets
from equipool import ConvexPotential, EquilibriumAggregation, NormalStart, record

X, INDEX = flatten(make_sets((3, 5, 1)))


def make(std=1.0, **settings):
    torch.manual_seed(0)
    start = NormalStart(4, std)
    return EquilibriumAggregation(X.shape[1], 4, start=start, **settings).double()


def test_training_draws_a_start_for_every_set_and_call():
    layer = make(steps=0)
    torch.manual_seed(1)
    first, second = layer(X, INDEX), layer(X, INDEX)
    assert len(torch.cat([first, second]).unique(dim=0)) == 6
    torch.manual_seed(1)
    assert torch.equal(layer(X, INDEX), first)


def test_starts_have_the_deviation():
    layer = make(std=3.0, steps=0)
    torch.manual_seed(2)
    drawn = layer(X.new_zeros(20_000, X.shape[1]), torch.arange(20_000))
    torch.testing.assert_close(drawn.std(), torch.tensor(3.0).double(), rtol=0.03, atol=0)
    assert drawn.mean().abs() < 0.1


def test_evaluation_starts_at_zero():
    layer = make(steps=0).eval()
    assert not layer(X, INDEX).any()


def test_where_the_energy_has_one_minimum_the_start_does_not_matter():
    layer = make(potential=ConvexPotential(X.shape[1], 4), steps=3000, scaling="mean")
    with record(diagnostics=True) as solutions:
        found = [layer(X, INDEX) for _ in range(3)]
    assert all(solution.converged.all() for solution in solutions)
    bounds = torch.stack([solution.error_bound for solution in solutions]).amax()
    assert max((one - found[0]).norm(dim=-1).max() for one in found[1:]) <= 2 * bounds
