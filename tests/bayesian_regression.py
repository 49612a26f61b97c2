"""Bayesian linear regression as a layer, whose posterior is known."""

import math

import torch
from torch import nn

from equipool import EquilibriumAggregation, Newton, SquaredNorm, ToTolerance

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
