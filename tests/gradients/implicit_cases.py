"""Layers and linear solvers of the implicit gradient, and all gradients of a layer."""

from functools import cache, partial

import pytest
import torch

from cases import first_seed, flatten, make_layer, make_sets
from equipool import EquilibriumAggregation, FixedSteps, Nesterov, SquaredNorm
from equipool.differentiation import implicit
from equipool.linear_solvers import ConjugateGradients
from equipool.potentials.convex import ConvexPotential

LINEAR_SOLVERS = ("cg", "cholesky")
each_linear_solver = pytest.mark.parametrize("linear_solver", LINEAR_SOLVERS)


@pytest.fixture
def exact_products(monkeypatch):
    """Conjugate gradients go on to the last digits, to be compared with exact gradients."""
    monkeypatch.setattr(
        implicit, "ConjugateGradients", partial(ConjugateGradients, tolerance=1e-10)
    )


SIZES = (3, 5, 1)


def convex_layer(**options):
    torch.manual_seed(0)
    layer = EquilibriumAggregation(
        3, 4, potential=ConvexPotential(3, 4, hidden=(6, 5)), regularizer=SquaredNorm(0.3),
        solver=Nesterov(0.2, 0.5), **options,
    )  # fmt: skip
    return layer.double()


def resnet_layer(**options):
    return make_layer(learning_rate=0.05, momentum=0.8, seed=converging_seed(), **options)


@cache
def converging_seed():
    """Of a layer whose search converges, to a minimum that is not nearly flat: it is there that
    implicit gradients are exact. Energies of random weights need not have one."""

    @torch.no_grad()
    def suits(seed):
        layer = make_layer(learning_rate=0.05, momentum=0.8, seed=seed)
        layer.steps = FixedSteps(250, tolerance=1e-10)
        return bool(layer.solve(*flatten(make_sets(SIZES))).converged.all())

    return first_seed(suits, start=3)


def gradients(layer, x, index=None, loss=lambda y: y.sin().sum(), **layout):
    """By x and by every parameter."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    loss(layer(x, index, **layout)).backward()
    learned = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    return {"x": x.grad, **{name: p.grad.clone() for name, p in learned.items()}}
