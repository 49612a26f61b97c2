"""Sets for which the implicit gradient is not taken: the last steps serve, and it is told."""

import pytest
import torch
from implicit_cases import SIZES, convex_layer, each_linear_solver, gradients, resnet_layer
from torch import nn

import equipool
from cases import assert_near, first_seed, flatten, make_layer, make_sets
from equipool import EquilibriumAggregation, Implicit, Truncated
from equipool.linear_solvers import Cholesky


@each_linear_solver
def test_sets_that_have_not_converged_get_the_truncated_gradient(linear_solver):
    """The larger set is slow, the smaller one fast; each gets what it would get alone."""
    layer = make_layer(learning_rate=0.03, momentum=0.8, num_steps=120)
    x, index = flatten(make_sets(SIZES))
    residual = layer.solve(x, index).residual
    tolerance = float(residual.sort().values[:2].mean())
    layer.differentiation = Implicit(linear_solver, tolerance, fallback_steps=4)
    solution = layer.solve(x.requires_grad_(), index)
    assert torch.equal(solution.fallback, residual > tolerance)
    solution.y.sin().sum().backward()
    assert torch.equal(solution.fallback, residual > tolerance)
    exact, truncated = Implicit(linear_solver, torch.inf), Truncated(4)
    for row, elements in enumerate(x.detach().split(SIZES)):
        layer.differentiation = truncated if solution.fallback[row] else exact
        alone = gradients(layer, elements)
        assert_near(x.grad[index == row], alone["x"], 1e-12)


def test_nothing_is_solved_for_sets_that_have_not_converged(monkeypatch):
    layer, asked = resnet_layer(num_steps=40), []
    x, index = flatten(make_sets(SIZES))
    tolerance = float(layer.solve(x, index).residual.sort().values[:2].mean())
    layer.differentiation = Implicit("cholesky", tolerance)
    solve = Cholesky.attempt

    def spy(self, product, b):
        asked.append(b)
        return solve(self, product, b)

    monkeypatch.setattr(Cholesky, "attempt", spy)
    solution = layer.solve(x, index)
    solution.y.sum().backward()
    assert torch.equal((asked[0] == 0).all(-1), solution.residual > tolerance)


def test_the_padding_row_and_empty_sets_do_not_fall_back():
    layer = convex_layer(steps=100, differentiation=Implicit(), start=equipool.LearnedStart(4, 0.2))
    x, index = flatten(make_sets((2, 0, 3)))
    mask = torch.ones(len(x), dtype=torch.bool)
    solution = layer.solve(x, index, mask=mask, dim_size=4)
    solution.y.sin().sum().backward()
    assert solution.fallback.tolist() == [False] * 4
    # Two empty sets, whose output is the start itself.
    assert_near(layer.start.y.grad, 2 * layer.start.y.detach().cos(), 1e-12)


class Potential(nn.Module):
    """A potential of one channel, given as a function of the difference between x and y."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, y):
        return self.scale * self.function(x - y).sum(-1)


def one_channel(function, learning_rate=0.1, **options):
    return EquilibriumAggregation(
        1, 1, potential=Potential(function), regularizer=0, scaling="sum",
        solver=equipool.Nesterov(learning_rate, 0.0), **options,
    ).double()  # fmt: skip


@each_linear_solver
def test_a_set_at_a_saddle_falls_back(linear_solver):
    """At the top between two wells the gradient is zero, and there is no minimum."""
    layer = one_channel(lambda r: (r.square() - 1).square(), 0.02, steps=300)
    layer.differentiation = Implicit(linear_solver, fallback_steps=3)
    x, index = torch.tensor([[0.0], [0.3]]).double(), torch.tensor([0, 1])
    solution = layer.solve(x.requires_grad_(), index)
    assert solution.converged.all()
    assert solution.fallback.tolist() == [False, False]
    solution.y.sum().backward()
    assert solution.fallback.tolist() == [True, False]
    assert_near(x.grad[1], torch.ones(1).double(), 1e-9)
    layer.differentiation = Truncated(3)
    assert_near(x.grad[:1], gradients(layer, x.detach()[:1], loss=torch.sum)["x"], 1e-12)


@each_linear_solver
def test_a_set_far_from_its_minimum_falls_back_however_small_its_gradient(linear_solver):
    """exp(r) falls for ever: its gradient is soon small, and its curvature as small."""
    layer = one_channel(torch.exp, 6.0, steps=equipool.FixedSteps(1, tolerance=1e-2))
    layer.differentiation = Implicit(linear_solver, tolerance=1e-2)
    x = torch.zeros(1, 1).double().requires_grad_()
    solution = layer.solve(x)
    assert solution.converged.all()
    assert not solution.fallback.any()
    solution.y.sum().backward()
    assert solution.fallback.all()


@each_linear_solver
def test_a_minimum_that_is_not_unique_falls_back(linear_solver):
    """A set that has stepped onto a flat floor lies where its step size put it."""
    layer = one_channel(lambda r: (r - 1).clamp(min=0).square(), 0.7, steps=1)
    layer.differentiation = Implicit(linear_solver, fallback_steps=1)
    x = torch.tensor([[3.0]]).double().requires_grad_()
    solution = layer.solve(x)
    assert solution.residual == 0
    assert not solution.fallback.any()
    solution.y.sum().backward()
    assert solution.fallback.all()
    assert_near(x.grad, torch.full_like(x, 2 * 0.7), 1e-12)


def test_the_known_bad_case_is_reported_and_its_gradient_is_that_of_the_last_steps():
    """Untrained, with zero biases: sets that no number of steps brings to rest, whose gradient
    through all of the steps explodes."""

    def case(seed):
        torch.manual_seed(seed)
        potential = equipool.ResNetPotential(3, 64, bias_std=0.0)
        layer = EquilibriumAggregation(3, 64, potential=potential, steps=300).double()
        return layer, torch.randn(8, 3).double(), torch.arange(8)

    def norm(layer, x, index, way):
        layer.differentiation = way
        return gradients(layer, x, index, loss=lambda y: y.square().sum())["x"].norm()

    def suits(seed):
        layer, x, index = case(seed)
        with torch.no_grad():
            some = 0 < int(layer.solve(x, index).converged.sum()) < 8
        return some and norm(layer, x, index, equipool.Unrolled()) > 1e6 * norm(
            layer, x, index, Truncated(5)
        )

    layer, x, index = case(first_seed(suits))
    layer.differentiation = Implicit(fallback_steps=5)
    solution = layer.solve(x, index)
    assert torch.equal(solution.fallback, ~solution.converged)
    restless = {}
    for way in (Truncated(5), Implicit(fallback_steps=5)):
        layer.differentiation = way
        loss = gradients(layer, x, index, loss=lambda y: y[solution.fallback].square().sum())
        restless[type(way)] = loss["x"]
    assert_near(restless[Implicit], restless[Truncated], 1e-9)


def test_what_the_backward_pass_finds_is_added():
    """One pass asks for a direction of negative curvature, the other for a positive one."""

    class Saddle(nn.Module):
        def forward(self, x, y):
            return y[:, 0].square() - y[:, 1].square() + 0 * x.sum(-1)

    layer = EquilibriumAggregation(
        1, 2, potential=Saddle(), regularizer=0, differentiation=Implicit()
    )
    solution = layer.solve(torch.zeros(3, 1, requires_grad=True), torch.tensor([0, 1, 2]))
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    (solution.y * first).sum().backward(retain_graph=True)
    assert solution.fallback.tolist() == [False, True, False]
    second = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    (solution.y * second).sum().backward()
    assert solution.fallback.tolist() == [False, True, True]


class Watched(equipool.Nesterov):
    """Counts the steps that a gradient passes back through."""

    passed = 0

    def step(self, objective, state):
        state = super().step(objective, state)
        if state.y.requires_grad:
            state.y.register_hook(self.count)
        return state

    def count(self, by_y):
        self.passed += by_y is not None


def test_the_last_steps_cost_nothing_where_no_set_falls_back():
    layer = convex_layer(steps=200, differentiation=Implicit(fallback_steps=4))
    layer.solver = Watched(0.2, 0.5).double()
    x, index = flatten(make_sets(SIZES))
    gradients(layer, x, index)
    assert layer.solver.passed == 0
    layer.differentiation = Implicit(tolerance=0.0, fallback_steps=4)
    gradients(layer, x, index)
    assert layer.solver.passed == 4


def test_under_no_grad_there_is_nothing_to_fall_back_from():
    layer = make_layer()
    layer.differentiation = Implicit()
    with torch.no_grad():
        assert not layer.solve(*flatten(make_sets(SIZES))).fallback.any()


def test_a_set_that_is_not_finite_falls_back_and_harms_no_other():
    layer = make_layer(learning_rate=0.03, momentum=0.8, num_steps=400)
    layer.differentiation = Implicit()
    x, index = flatten(make_sets(SIZES))
    expected = gradients(layer, x, index)["x"]
    broken = x.clone()
    broken[0, 1] = torch.nan
    assert layer.solve(broken, index).fallback.tolist() == [True, False, False]
    found = gradients(layer, broken, index)["x"]
    assert_near(found[index > 0], expected[index > 0], 1e-12)


@pytest.mark.parametrize("tolerance", [1e-1, 0.0])
def test_what_has_converged_is_what_has_for_the_layer(tolerance):
    layer = make_layer()
    layer.steps, layer.differentiation = equipool.FixedSteps(200, tolerance), Implicit()
    solution = layer.solve(*flatten(make_sets((2, 5, 3))))
    assert torch.equal(solution.fallback, ~solution.converged)
    assert solution.converged.any() == (tolerance == 1e-1)
