"""Momentum that is held back: each restraint by itself, set by set."""

import pytest
import torch
from torch import nn

from equipool import (
    EquilibriumAggregation,
    SquaredNorm,
)
from equipool.descent import Keep
from equipool.sets import gather_sets
from equipool.solvers import Nesterov


class Quadratic(nn.Module):
    """A valley whose curvature is 2 * `curvature` along the first axis, and 2 along the others."""

    def __init__(self, curvature):
        super().__init__()
        self.curvature = curvature

    def forward(self, x, y):
        squares = (y - x).square()
        return self.curvature * squares[:, 0] + squares[:, 1:].sum(-1)


def quadratic_layer(solver, curvature=50.0, num_steps=40):
    return EquilibriumAggregation(
        3, 3, potential=Quadratic(curvature), solver=solver, steps=num_steps, scaling="mean"
    )


class TestBoundedSteps:
    def test_no_step_is_longer_than_the_longest(self):
        layer = quadratic_layer(Nesterov(max_step=0.05))
        x = torch.cat([torch.randn(4, 3), 1e-3 * torch.randn(4, 3)])
        path = layer.solve(x, torch.arange(8), trajectory=True).trajectory
        lengths = path.diff(dim=0).norm(dim=-1)
        assert lengths.max() <= 0.05 * (1 + 1e-5)
        assert (lengths < 0.04).any()

    def test_curvature_keeps_a_step_size_from_diverging(self):
        x = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])
        index = torch.tensor([0, 1])
        start = quadratic_layer(Nesterov(momentum=0.5))
        safe = quadratic_layer(Nesterov(momentum=0.5, curvature_safe=True), num_steps=400)
        assert not start.solve(x, index).residual.max() < 1e6
        assert safe.solve(x, index).residual.max() < 1e-3

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_rounding_is_no_curvature(self, dtype):
        """Where a search has converged, its gradients are rounding, and so are their differences:
        the steps that a gradient passes through would become too short."""
        torch.manual_seed(0)
        solver = Nesterov(0.5, momentum=0.5, curvature_safe=True)
        layer = EquilibriumAggregation(
            3, 4, solver=solver, regularizer=SquaredNorm(1.0), scaling="log-mean"
        ).to(dtype)
        x = torch.randn(20, 3, dtype=dtype)
        search = layer._search(x, gather_sets(x)[1], layer.steps.budget(False), Keep())
        state = solver.init(search.start, 300, search.objective)
        found = []
        for _ in range(300):
            state = solver.step(search.objective, state)
            found.append(state.curvature.item())
        assert state.gradient.abs().max() < 1e-6
        assert found[-1] == found[30] > 0
