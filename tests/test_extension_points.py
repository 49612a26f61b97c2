"""Parts of one's own: what the base classes ask for is enough, everywhere."""

from dataclasses import replace

import pytest
import torch

import equipool
from cases import assert_near, flatten, make_sets
from equipool import EquilibriumAggregation, FixedSteps, Implicit, Nesterov, ToTolerance

SOLVERS = {
    "Nesterov": lambda: Nesterov(0.4, 0.1),
    "momentum": lambda: equipool.GradientDescent(0.4, 0.1),
    "GradientDescent": lambda: equipool.GradientDescent(0.4),
    "bounded": lambda: equipool.Nesterov(0.4, 0.1, max_step=5.0, curvature_safe=True),
    "SafeguardedNesterov": equipool.SafeguardedNesterov,
    "Newton": equipool.Newton,
    "Newton after": lambda: equipool.Newton(after=Nesterov(0.4, 0.1)),
}
METHODS = [equipool.Unrolled(), equipool.Truncated(3), equipool.Truncated(1), Implicit()]


class SummedDistance(equipool.potentials.SummedPotential):
    """The own summed potential of the export page: a value and a gradient, nothing else."""

    def __init__(self, x, sets):
        self.x = x
        self.sets = sets

    def value(self, y):
        return self.sets.sum((self.x - self.sets.spread(y)).square().sum(-1))

    def gradient(self, y):
        return self.sets.sum(2 * (self.sets.spread(y) - self.x))


class Distance(equipool.potentials.Potential):
    def forward(self, x, y):
        return (x - y).square().sum(-1)

    def bind(self, x, sets):
        return SummedDistance(x, sets)


def distance_layer(**options):
    return EquilibriumAggregation(
        3, 3, potential=Distance(), regularizer=0, scaling="mean", **options
    ).double()


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("solver", SOLVERS)
def test_own_summed_potential_with_every_solver_and_method(solver, method):
    sets = make_sets((3, 1, 5))
    x, index = flatten(sets)
    x.requires_grad_()
    means = torch.stack([elements.mean(0) for elements in sets])
    for steps in (FixedSteps(40, 1e-9), ToTolerance(1e-9, 80)):
        if solver == "Newton":
            steps = replace(
                steps, **{"num_steps" if isinstance(steps, FixedSteps) else "max_steps": 3}
            )
        layer = distance_layer(solver=SOLVERS[solver](), differentiation=method, steps=steps)
        with equipool.record(diagnostics=True) as solutions:
            y = layer(x, index)
        assert solutions[0].converged.all()
        assert_near(y, means, 1e-8)
        assert torch.autograd.grad(y.sum(), x)[0].abs().max() > 0
        with torch.no_grad():
            assert_near(layer.solve(x, index).y, means, 1e-8)


def test_sets_of_an_own_summed_potential_stop_one_by_one():
    """Without `restrict` they are masked instead of dropped, with the same result."""
    sets = make_sets((4, 2, 3))
    sets[0] *= 1e-3
    x, index = flatten(sets)
    layer = distance_layer(solver=equipool.GradientDescent(0.1), steps=ToTolerance(1e-6, 500))
    with torch.no_grad():
        solution = layer.solve(x, index)
        alone = [layer.solve(elements) for elements in sets]
    assert solution.num_steps.tolist() == [int(one.num_steps) for one in alone]
    assert_near(solution.y, torch.cat([one.y for one in alone]), 1e-12)


class Unfinished(Distance):
    def bind(self, x, sets):
        return lambda y: y


def test_over_must_return_a_summed_potential():
    layer = EquilibriumAggregation(3, 3, potential=Unfinished())
    with pytest.raises(TypeError, match=r"Unfinished.bind returned function, expected a subclass"):
        layer(torch.randn(4, 3))


class OwnSquaredNorm(equipool.regularizers.Regularizer):
    """As `SquaredNorm(0.3)`, with nothing but its value."""

    def forward(self, y):
        return 0.3 * y.square().sum(-1)


@pytest.mark.parametrize("solver", ["Nesterov", "Newton", "SafeguardedNesterov"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_own_regulariser(method, solver):
    x, index = flatten(make_sets((3, 1, 5)))
    found = []
    for regularizer in (OwnSquaredNorm(), equipool.SquaredNorm(0.3, learnable=False)):
        layer = EquilibriumAggregation(
            3, 3, potential=Distance(), regularizer=regularizer, solver=SOLVERS[solver](),
            differentiation=method, scaling="mean", steps=FixedSteps(40, 1e-6),
        ).double()  # fmt: skip
        inputs = x.clone().requires_grad_()
        y = layer(inputs, index)
        found.append((y, *torch.autograd.grad(y.sin().sum(), inputs)))
        with torch.inference_mode():  # torch.func.grad gives zeros there before torch 2.12
            assert_near(layer(*flatten(make_sets((3, 1, 5)))), y, 1e-12)
    for own, ours in zip(*found, strict=True):
        assert_near(own, ours, 1e-9)


@pytest.mark.parametrize(
    ("name", "bad", "described"),
    [
        ("solver", Nesterov, "the class Nesterov"),
        ("regularizer", "0.1", "'0.1'"),
        ("differentiation", Implicit, "the class Implicit"),
        ("start", torch.zeros(3), "tensor"),
        ("potential", lambda x, y: x, "function"),
    ],
)
def test_classes_and_numbers_are_no_parts(name, bad, described):
    with pytest.raises(TypeError, match=f"{name} is .*{described}.*such as"):
        EquilibriumAggregation(3, 3, **{name: bad})
