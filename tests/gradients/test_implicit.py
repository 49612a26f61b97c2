"""The implicit gradient against finite differences and unrolling."""

import pytest
import torch
from implicit_cases import (
    LINEAR_SOLVERS,
    SIZES,
    convex_layer,
    exact_products,
    gradients,
    resnet_layer,
)

import equipool
from cases import Quadratic, assert_near, flatten, make_sets
from equipool import Implicit, ToTolerance

__all__ = ["exact_products"]
pytestmark = pytest.mark.usefixtures("exact_products")


LAYERS = {
    "resnet": resnet_layer,
    "resnet by autograd": lambda: resnet_layer(factored=False),
    "convex": convex_layer,
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def _with(layer, differentiation):
    layer.differentiation = differentiation
    return layer


@each_layer
@pytest.mark.parametrize("steps", [equipool.FixedSteps(400, 1e-13), ToTolerance(1e-13, 5000)])
def test_agrees_with_unrolling(steps, make):
    layer = make()
    layer.steps = steps
    x, index = flatten(make_sets(SIZES))
    expected = gradients(_with(layer, equipool.Unrolled()), x, index)
    for linear_solver in LINEAR_SOLVERS:
        found = gradients(_with(layer, Implicit(linear_solver)), x, index)
        for name, gradient in expected.items():
            assert_near(found[name], gradient, 1e-6)
        assert all(found[name].abs().max() == 0 for name in found if name.startswith("solver"))


@pytest.mark.parametrize(
    "solver",
    [
        equipool.GradientDescent(0.2, 0.5),
        equipool.GradientDescent(0.2),
        equipool.SafeguardedNesterov(),
        equipool.StronglyConvexNesterov(),
        equipool.Newton(),
        equipool.Newton(after=equipool.Nesterov(0.2, 0.5)),
    ],
    ids=lambda solver: type(solver).__name__,
)
@pytest.mark.parametrize("to_tolerance", [False, True])
def test_the_gradient_of_a_minimum_does_not_depend_on_the_way_to_it(to_tolerance, solver):
    layer = convex_layer(steps=400, differentiation=Implicit("cholesky"))
    x, index = flatten(make_sets((3, 0, 5)))
    expected = gradients(layer, x, index)
    layer.solver = solver.double()
    num_steps = 10 if isinstance(solver, equipool.Newton) else 400
    layer.steps = ToTolerance(1e-9, 400) if to_tolerance else equipool.FixedSteps(num_steps, 1e-9)
    solution = layer.solve(x, index)
    found = gradients(layer, x, index)
    assert not solution.fallback.any()
    for name, gradient in expected.items():
        if not name.startswith("solver"):
            assert_near(found[name], gradient, 1e-7)


def test_the_gradient_of_a_known_minimum():
    """With F = |x - y|^2 and R = a |y|^2 the output is sum x / (N + a)."""
    layer = equipool.EquilibriumAggregation(
        2, 2, potential=Quadratic(), regularizer=equipool.SquaredNorm(0.5), scaling="sum",
        solver=equipool.GradientDescent(0.05, 0.5), steps=200, differentiation=Implicit(),
    ).double()  # fmt: skip
    x = make_sets((4,), 2)[0]
    found = gradients(layer, x, loss=lambda y: (y * torch.tensor([1.0, 3.0])).sum())
    assert_near(found["x"], torch.tensor([1.0, 3.0]).double().expand(4, 2) / 4.5, 1e-9)
    expected = -(x.sum(0) * torch.tensor([1.0, 3.0])).sum() / 4.5**2
    (by_weight,) = torch.autograd.grad(layer.regularizer.weight, layer.regularizer.parameters())
    assert_near(found["regularizer.raw_weight.raw"], expected * by_weight, 1e-9)


@each_layer
def test_gradients_of_a_set_are_the_same_alone_and_in_a_batch(make):
    layer = make()
    layer.steps = 40
    sets = make_sets((4, 2, 0, 7, 1))
    x, index = flatten(sets)
    residual = layer.solve(x, index, dim_size=len(sets)).residual
    layer.differentiation = Implicit(tolerance=float(residual.sort().values[2:4].mean()))
    assert layer.solve(x, index, dim_size=len(sets)).fallback.sum() == 2
    whole = gradients(layer, x, index, dim_size=len(sets))
    parts = [gradients(layer, elements) for elements in sets if len(elements)]
    assert_near(whole["x"], torch.cat([part["x"] for part in parts]), 1e-11)
    for name in set(whole) - {"x"}:
        assert_near(whole[name], sum(part[name] for part in parts), 1e-10)


def test_step_size_and_momentum_learn_from_the_auxiliary_loss():
    layer = convex_layer(steps=30, differentiation=Implicit(tolerance=1e-1))
    x, index = flatten(make_sets(SIZES))
    with equipool.record(diagnostics=True) as solutions:
        y = layer(x, index)
    (y.sum() + solutions.aux_loss).backward()
    assert not solutions[0].fallback.any()
    assert all(parameter.grad != 0 for parameter in layer.solver.parameters())
