"""How far an output is from the minimum, at most."""

from functools import cache

import pytest
import torch

from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    FixedSteps,
    SquaredNorm,
    StronglyConvexNesterov,
)


def make_layer(num_steps=5, weight=0.5):
    torch.manual_seed(0)
    return EquilibriumAggregation(
        3, 4, potential=ConvexPotential(3, 4, hidden=(8, 8)), regularizer=SquaredNorm(weight),
        solver=StronglyConvexNesterov(), steps=num_steps,
    )  # fmt: skip


def make_batch():
    torch.manual_seed(1)
    return torch.randn(30, 3), torch.randint(0, 5, (30,))  # of six sets the last is empty


@cache
def minimum():
    exact, (x, index) = make_layer().double(), make_batch()
    exact.steps = FixedSteps(3000, tolerance=1e-12)
    with torch.no_grad():
        solution = exact.solve(x.double(), index, dim_size=6)
    assert solution.converged.all()
    return solution.y


@pytest.mark.parametrize("num_steps", [0, 1, 5, 50, 2000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_output_is_farther_from_the_minimum(num_steps, dtype):
    layer, (x, index) = make_layer(num_steps).to(dtype), make_batch()
    solution = layer.solve(x.to(dtype), index, dim_size=6)
    distance = (solution.y.double() - minimum()).norm(dim=-1)
    assert (distance <= solution.error_bound).all()
    assert (solution.error_bound[:5] > 0).all()
    assert solution.error_bound[5] == 0
    if num_steps < 5:  # and it says something
        assert (solution.error_bound[:5] < 100 * distance[:5]).all()


def test_it_is_infinite_for_a_set_that_is_not_finite():
    layer, (x, index) = make_layer(), make_batch()
    x[index == 2] = torch.nan
    bound = layer.solve(x, index, dim_size=6).error_bound
    assert bound[2] == torch.inf
    assert bound[[0, 1, 3, 4]].isfinite().all()


def test_it_is_infinite_without_bounds_and_in_short_precision():
    layer, (x, index) = make_layer(), make_batch()
    plain = EquilibriumAggregation(3, 4).to(x.dtype)
    assert (plain.solve(x, index).error_bound == torch.inf).all()
    layer, x = layer.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert (layer.solve(x, index).error_bound == torch.inf).all()
    assert (layer.bfloat16().solve(x.bfloat16(), index).error_bound == torch.inf).all()
