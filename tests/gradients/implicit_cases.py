"""Layers and linear solvers of the implicit gradient, and all gradients of a layer."""

import pytest
import torch

from cases import make_layer
from equipool import EquilibriumAggregation, Nesterov, SquaredNorm
from equipool.linear_solvers import Cholesky, ConjugateGradients, Neumann
from equipool.potentials.convex import ConvexPotential

LINEAR_SOLVERS = {
    "conjugate gradients": ConjugateGradients(tolerance=1e-10),
    "neumann": Neumann(max_steps=3000, tolerance=1e-10),
    "cholesky": Cholesky(),
}
each_linear_solver = pytest.mark.parametrize(
    "linear_solver", LINEAR_SOLVERS.values(), ids=LINEAR_SOLVERS
)
SIZES = (3, 5, 1)


def convex_layer(**options):
    torch.manual_seed(0)
    layer = EquilibriumAggregation(
        3,
        4,
        potential=ConvexPotential(3, 4, hidden=(6, 5)),
        regularizer=SquaredNorm(0.3),
        solver=Nesterov(0.2, 0.5),
        **options,
    )
    return layer.double()


def resnet_layer(**options):
    return make_layer(learning_rate=0.08, momentum=0.8, seed=3, **options)


def gradients(layer, x, index=None, loss=lambda y: y.sin().sum(), **layout):
    """By x and by every parameter."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    loss(layer(x, index, **layout)).backward()
    return {"x": x.grad, **{name: p.grad.clone() for name, p in layer.named_parameters()}}
