"""Convex potentials and layers of them, in which no parameter has a special value, and batches."""

import pytest
import torch
from hypothesis import strategies as st

from cases import SCALINGS, flatten, make_sets
from equipool import EquilibriumAggregation, LearnedStart, Nesterov, SquaredNorm
from equipool.potentials import ConvexPotential
from equipool.sets import gather_sets

SIZES = (3, 1, 0, 6, 2)
HIDDENS = [(5,), (6, 4), (4, 3, 5)]
WEIGHT = 0.3  # of the regulariser

each_depth = pytest.mark.parametrize("hidden", HIDDENS)
each_scaling = pytest.mark.parametrize("scaling", SCALINGS)
seeds = st.integers(0, 2**31)


def make_potential(hidden=(6, 4), noise=0.3, seed=0, kind=ConvexPotential, channels=(3, 4)):
    """No parameter has a special value, biases and slopes included."""
    torch.manual_seed(seed)
    potential = kind(*channels, hidden).double()
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return potential


def make_convex_layer(hidden=(6, 4), scaling="log", num_steps=5, channels=(3, 4), **changes):
    potential = make_potential(hidden, channels=channels, **changes)
    return EquilibriumAggregation(
        *channels, potential=potential, regularizer=SquaredNorm(WEIGHT), solver=Nesterov(0.1, 0.7),
        start=LearnedStart(channels[1], 0.1), steps=num_steps, scaling=scaling,
    ).double()  # fmt: skip


def batch(sizes=SIZES, channels=3, seed=1):
    x, index = flatten(make_sets(sizes, channels, seed=seed))
    return gather_sets(x, index, dim_size=len(sizes))


def draw_y(num_rows, channels=4, scale=1.0, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_rows, channels, generator=generator, dtype=torch.float64)
