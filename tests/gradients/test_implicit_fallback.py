"""Sets for which the implicit gradient is not taken: the last steps serve, and it is told."""

import torch
from implicit_cases import SIZES, convex_layer, each_linear_solver, gradients
from torch import nn

import equipool
from cases import assert_near, flatten, make_layer, make_sets
from equipool import EquilibriumAggregation, Implicit, Truncated


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
