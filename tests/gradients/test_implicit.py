"""The implicit gradient against finite differences and unrolling, and where it is not taken."""

import pytest
import torch
from torch import nn

import equipool
from cases import Quadratic, assert_near, flatten, make_layer, make_sets, offsets
from equipool import (
    EquilibriumAggregation,
    HeavyBall,
    LearnedStart,
    Nesterov,
    NoRegularizer,
    SquaredNorm,
    Unrolled,
)
from equipool.differentiation import Implicit, Truncated
from equipool.linear_solvers import Cholesky, ConjugateGradients, Neumann
from equipool.ops import momentum
from equipool.ops.resnet_gradient import binding
from equipool.potentials.convex import ConvexPotential
from equipool.solvers import (
    GradientDescent,
    Newton,
    Polished,
    SafeguardedNesterov,
    StronglyConvexNesterov,
)

LINEAR_SOLVERS = {
    "conjugate gradients": ConjugateGradients(tolerance=1e-10),
    "neumann": Neumann(max_steps=3000, tolerance=1e-10),
    "cholesky": Cholesky(),
}
each_linear_solver = pytest.mark.parametrize(
    "linear_solver", LINEAR_SOLVERS.values(), ids=LINEAR_SOLVERS
)
SIZES = (3, 5, 1)


def settled(layer):
    """The layer, solved to the last digits."""
    layer.max_steps, layer.tolerance = 5000, 1e-13
    return layer


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


LAYERS = {
    "resnet": resnet_layer,
    "resnet by autograd": lambda: resnet_layer(factored=False),
    "convex": convex_layer,
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def gradients(layer, x, index=None, loss=lambda y: y.sin().sum(), **layout):
    """By x and by every parameter."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    loss(layer(x, index, **layout)).backward()
    return {"x": x.grad, **{name: p.grad.clone() for name, p in layer.named_parameters()}}


def _with(layer, differentiation):
    layer.differentiation = differentiation
    return layer


def by_differences(layer, x, index, part, directions, width=1e-5):
    """The derivative of the loss along directions of x or of the parameters of a part, by a central
    difference of the converged layer."""

    @torch.no_grad()
    def loss(sign):
        steps = [sign * width * direction for direction in directions]
        if part == "x":
            return layer(x + steps[0], index).sin().sum()
        parameters = list(layer.get_submodule(part).parameters())
        for parameter, step in zip(parameters, steps, strict=True):
            parameter.add_(step)
        value = layer(x, index).sin().sum()
        for parameter, step in zip(parameters, steps, strict=True):
            parameter.sub_(step)
        return value

    return (loss(1) - loss(-1)) / (2 * width)


@each_layer
@pytest.mark.parametrize("part", ["x", "potential", "regularizer"])
def test_agrees_with_finite_differences(part, make):
    layer = settled(make())
    x, index = flatten(make_sets(SIZES))
    generator = torch.Generator().manual_seed(4)
    inputs = [x] if part == "x" else list(layer.get_submodule(part).parameters())
    directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in inputs]
    expected = by_differences(layer, x, index, part, directions)
    assert expected.abs() > 1e-3
    for linear_solver in LINEAR_SOLVERS.values():
        found = gradients(_with(layer, Implicit(linear_solver)), x, index)
        found = [gradient for name, gradient in found.items() if name.startswith(part)]
        derivative = sum((g * d).sum() for g, d in zip(found, directions, strict=True))
        assert_near(derivative, expected, 1e-6)


@each_layer
@pytest.mark.parametrize("max_steps", [None, 5000])
def test_agrees_with_unrolling(max_steps, make):
    layer = settled(make())
    layer.max_steps, layer.num_steps = max_steps, 400
    x, index = flatten(make_sets(SIZES))
    expected = gradients(_with(layer, Unrolled()), x, index)
    for linear_solver in LINEAR_SOLVERS.values():
        found = gradients(_with(layer, Implicit(linear_solver)), x, index)
        for name, gradient in expected.items():
            assert_near(found[name], gradient, 1e-6)
        assert all(found[name].abs().max() == 0 for name in found if name.startswith("solver"))


@pytest.mark.parametrize(
    "solver",
    [
        HeavyBall(0.2, 0.5),
        GradientDescent(0.2),
        SafeguardedNesterov(),
        StronglyConvexNesterov(),
        Newton(),
        Polished(Nesterov(0.2, 0.5)),
    ],
    ids=lambda solver: type(solver).__name__,
)
@pytest.mark.parametrize("max_steps", [None, 400])
def test_the_gradient_of_a_minimum_does_not_depend_on_the_way_to_it(max_steps, solver):
    layer = convex_layer(num_steps=400, differentiation=Implicit(Cholesky()))
    x, index = flatten(make_sets((3, 0, 5)))
    expected = gradients(layer, x, index)
    layer.solver = solver.double()
    layer.num_steps = 10 if isinstance(solver, Newton) else 400
    layer.max_steps, layer.tolerance = max_steps, 1e-9
    solution = layer.solve(x, index)
    found = gradients(layer, x, index)
    assert not solution.fallback.any()
    for name, gradient in expected.items():
        if not name.startswith("solver"):
            assert_near(found[name], gradient, 1e-7)


def test_the_gradient_of_a_known_minimum():
    """With F = |x - y|^2 and R = a |y|^2 the output is sum x / (N + a)."""
    layer = EquilibriumAggregation(
        2, 2, potential=Quadratic(), regularizer=SquaredNorm(0.5), scaling="sum",
        solver=HeavyBall(0.05, 0.5), num_steps=200, differentiation=Implicit(),
    ).double()  # fmt: skip
    x = make_sets((4,), 2)[0]
    found = gradients(layer, x, loss=lambda y: (y * torch.tensor([1.0, 3.0])).sum())
    assert_near(found["x"], torch.tensor([1.0, 3.0]).double().expand(4, 2) / 4.5, 1e-9)
    expected = -(x.sum(0) * torch.tensor([1.0, 3.0])).sum() / 4.5**2
    (by_weight,) = torch.autograd.grad(layer.regularizer.weight, layer.regularizer.parameters())
    assert_near(found["regularizer.raw_weight.raw"], expected * by_weight, 1e-9)


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


class Spy(Cholesky):
    """Keeps what it was asked to solve."""

    def __call__(self, product, b):
        self.b = b
        return super().__call__(product, b)


def test_nothing_is_solved_for_sets_that_have_not_converged():
    layer = resnet_layer(num_steps=40)
    x, index = flatten(make_sets(SIZES))
    tolerance = float(layer.solve(x, index).residual.sort().values[:2].mean())
    spy = Spy()
    layer.differentiation = Implicit(spy, tolerance)
    solution = layer.solve(x, index)
    solution.y.sum().backward()
    assert torch.equal((spy.b == 0).all(-1), solution.residual > tolerance)


@each_layer
def test_gradients_of_a_set_are_the_same_alone_and_in_a_batch(make):
    layer = make()
    layer.num_steps = 40
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


def test_every_layout_gets_the_same_gradient():
    layer = settled(convex_layer(differentiation=Implicit()))
    sets = make_sets((2, 0, 3))
    x, index = flatten(sets)
    expected = gradients(layer, x, index, dim_size=3)
    order = torch.tensor([3, 0, 4, 1, 2])
    length = 4
    padded = torch.stack([torch.cat([s, s.new_full((length - len(s), 3), 9.0)]) for s in sets])
    mask = torch.arange(length) < torch.tensor([[2], [0], [3]])
    flat = torch.cat([x.new_full((2, 3), 9.0), x])
    flat_index = torch.cat([index.new_zeros(2), index])
    others = [
        gradients(layer, x[order], index[order], dim_size=3),
        gradients(layer, x, ptr=offsets(sets)),
        gradients(layer, padded, mask=mask),
        gradients(layer, flat, flat_index, mask=torch.arange(len(flat)) >= 2, dim_size=3),
    ]
    others[0]["x"] = others[0]["x"][order.argsort()]
    assert (others[2]["x"][~mask] == 0).all()
    others[2]["x"] = others[2]["x"][mask]
    others[3]["x"] = others[3]["x"][2:]
    for other in others:
        for name, gradient in expected.items():
            assert_near(other[name], gradient, 1e-10)


def test_the_padding_row_and_empty_sets_do_not_fall_back():
    layer = convex_layer(num_steps=100, differentiation=Implicit(), start=LearnedStart(4, 0.2))
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
        1, 1, potential=Potential(function), regularizer=NoRegularizer(), scaling="sum",
        solver=Nesterov(learning_rate, 0.0), **options,
    ).double()  # fmt: skip


@each_linear_solver
def test_a_set_at_a_saddle_falls_back(linear_solver):
    """At the top between two wells the gradient is zero, and there is no minimum."""
    layer = one_channel(lambda r: (r.square() - 1).square(), 0.02, num_steps=300)
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
    layer = one_channel(torch.exp, 6.0, num_steps=1, tolerance=1e-2)
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
    layer = one_channel(lambda r: (r - 1).clamp(min=0).square(), 0.7, num_steps=1)
    layer.differentiation = Implicit(linear_solver, fallback_steps=1)
    x = torch.tensor([[3.0]]).double().requires_grad_()
    solution = layer.solve(x)
    assert solution.residual == 0
    assert not solution.fallback.any()
    solution.y.sum().backward()
    assert solution.fallback.all()
    assert_near(x.grad, torch.full_like(x, 2 * 0.7), 1e-12)


def test_the_known_bad_case_is_reported_and_never_huge():
    """Untrained, output size 64: sets that no number of steps brings to rest, whose unrolled
    gradient explodes."""
    torch.manual_seed(1)
    layer = EquilibriumAggregation(3, 64, num_steps=300)
    x, index = torch.randn(8, 3), torch.arange(8)
    norms = {}
    for way in (Unrolled(), Truncated(5), Implicit()):
        layer.differentiation = way
        found = gradients(layer, x, index, loss=lambda y: y.square().sum())
        parts = [g.flatten() for name, g in found.items() if "potential" in name]
        norms[type(way)] = float(torch.cat(parts).norm())
    assert norms[Unrolled] > 1e6 * norms[Truncated]
    assert norms[Implicit] < 10 * norms[Truncated]
    solution = layer.solve(x, index)
    assert 0 < solution.converged.sum() < 8
    assert (solution.fallback | solution.converged).all()
    assert (solution.fallback | (solution.residual <= 1e-3)).all()


def test_what_the_backward_pass_finds_is_added():
    """One pass asks for a direction of negative curvature, the other for a positive one."""

    class Saddle(nn.Module):
        def forward(self, x, y):
            return y[:, 0].square() - y[:, 1].square() + 0 * x.sum(-1)

    layer = EquilibriumAggregation(
        1, 2, potential=Saddle(), regularizer=NoRegularizer(), differentiation=Implicit()
    )
    solution = layer.solve(torch.zeros(3, 1, requires_grad=True), torch.tensor([0, 1, 2]))
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    (solution.y * first).sum().backward(retain_graph=True)
    assert solution.fallback.tolist() == [False, True, False]
    second = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    (solution.y * second).sum().backward()
    assert solution.fallback.tolist() == [False, True, True]


class Watched(Nesterov):
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
    layer = convex_layer(num_steps=200, differentiation=Implicit(fallback_steps=4))
    layer.solver = Watched(0.2, 0.5).double()
    x, index = flatten(make_sets(SIZES))
    gradients(layer, x, index)
    assert layer.solver.passed == 0
    layer.differentiation = Implicit(tolerance=0.0, fallback_steps=4)
    gradients(layer, x, index)
    assert layer.solver.passed == 4


def test_step_size_and_momentum_learn_from_the_auxiliary_loss():
    layer = convex_layer(num_steps=30, differentiation=Implicit(tolerance=1e-1))
    x, index = flatten(make_sets(SIZES))
    with equipool.record() as solutions:
        y = layer(x, index)
    (y.sum() + solutions.aux_loss).backward()
    assert not solutions[0].fallback.any()
    assert all(parameter.grad != 0 for parameter in layer.solver.parameters())


def test_under_no_grad_there_is_nothing_to_fall_back_from():
    layer = make_layer()
    layer.differentiation = Implicit()
    x, index = flatten(make_sets(SIZES))
    with torch.no_grad():
        assert layer.solve(x, index).fallback is None
    with torch.inference_mode():
        assert layer.solve(x, index).fallback is None
    assert layer.solve(x, index).fallback.shape == (3,)


@pytest.mark.parametrize("factored", [True, False], ids=["factored", "autograd"])
@pytest.mark.parametrize("kind", ["bfloat16", "autocast"])
def test_half_precision(kind, factored):
    """Products of eight bits: the gradient is the exact one as far as they allow."""
    options = {"num_steps": 200, "factored": factored}
    x, index = flatten(make_sets(SIZES))
    exact = resnet_layer(**options)
    exact.differentiation = Implicit()
    expected = torch.cat([g.flatten() for g in gradients(exact, x, index).values()])
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    layer = resnet_layer(**options, dtype=dtype)
    layer.differentiation = Implicit(ConjugateGradients(max_steps=20, tolerance=1e-2), 0.1)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        x = x.to(dtype).requires_grad_()
        solution = layer.solve(x, index)
    solution.y.double().sin().sum().backward()
    found = torch.cat([x.grad.flatten(), *(p.grad.flatten() for p in layer.parameters())]).double()
    assert not solution.fallback.any()
    assert torch.cosine_similarity(found, expected, dim=0) > 0.99


def test_the_hessian_is_taken_in_the_precision_of_the_forward_pass():
    seen = []

    class Watching(Quadratic):
        def forward(self, x, y):
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x, y)

    layer = EquilibriumAggregation(3, 3, potential=Watching(), differentiation=Implicit())
    layer.num_steps = 100
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(make_sets((4,), dtype=torch.float32)[0])
    forward = len(seen)
    y.sum().backward()
    assert len(seen) > forward
    assert all(seen)


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


def test_with_the_kernels(monkeypatch):
    """On a GPU where there is one, in Triton's interpreter elsewhere; one set falls back."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = make_layer(
        hidden=(5, 3), learning_rate=0.03, momentum=0.8, seed=2, num_steps=40, dtype=torch.float32
    )
    x, index = flatten(make_sets((3, 0, 5), dtype=torch.float32))
    tolerance = float(layer.solve(x, index).residual[[0, 2]].mean())
    layer.differentiation = Implicit(tolerance=tolerance, fallback_steps=2)
    expected = gradients(layer, x, index)
    solution = layer.solve(x, index)
    solution.y.sin().sum().backward()
    assert solution.fallback.sum() == 1
    for module in (binding, momentum):
        monkeypatch.setattr(module, "kernels_serve", lambda x: x.dtype != torch.float64)
    layer, x, index = layer.to(device), x.to(device), index.to(device)
    found = gradients(layer, x, index)
    for name, gradient in expected.items():
        assert_near(found[name].cpu(), gradient, 1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_in_a_cuda_graph():
    """Nothing is looked at on the host, and what is found out in a replay is reported."""
    layer = make_layer(
        hidden=(5, 3), learning_rate=0.03, momentum=0.8, seed=2, num_steps=60, dtype=torch.float32
    ).cuda()
    x, index = (t.cuda() for t in flatten(make_sets((3, 0, 5, 1), dtype=torch.float32)))
    layer.differentiation = Implicit(ConjugateGradients(8), 0.1, fallback_steps=2)
    expected = gradients(layer, x, index, dim_size=4)
    mask = torch.ones(len(x), dtype=torch.bool, device="cuda")

    def step():
        layer.zero_grad(set_to_none=True)
        solution = layer.solve(x, index, mask=mask, dim_size=4)
        solution.y.sin().sum().backward()
        return solution.fallback, [parameter.grad for parameter in layer.parameters()]

    fallback, found = equipool.capture_step(step)()
    for gradient, other in zip(found, list(expected.values())[1:], strict=True):
        assert_near(gradient, other, 1e-3)
    assert fallback.shape == (4,)


@pytest.mark.parametrize("power", [1, 2], ids=["linear", "square"])
def test_a_second_gradient_is_refused(power):
    layer = make_layer(factored=False)
    layer.differentiation = Implicit()
    x = make_sets((3,))[0].requires_grad_()
    with pytest.raises(RuntimeError, match=r"use differentiation=Unrolled\(\)"):
        torch.autograd.grad(layer(x).pow(power).sum(), x, create_graph=True)


def test_transforms_are_refused():
    layer = make_layer(factored=False)
    layer.differentiation = Implicit()
    with pytest.raises(RuntimeError, match=r"torch.func do not pass through Implicit\(\)"):
        torch.func.grad(lambda x: layer(x).sum())(make_sets((3,))[0])


@pytest.mark.parametrize("tolerance", [1e-1, 0.0])
def test_what_has_converged_is_what_has_for_the_layer(tolerance):
    layer = make_layer()
    layer.num_steps, layer.tolerance, layer.differentiation = 200, tolerance, Implicit()
    solution = layer.solve(*flatten(make_sets((2, 5, 3))))
    assert torch.equal(solution.fallback, ~solution.converged)
    assert solution.converged.any() == (tolerance == 1e-1)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
@pytest.mark.parametrize("factored", [True, False], ids=["factored", "autograd"])
def test_compiled(factored):
    """Every step of the linear solver is taken there, so there are few; one set falls back."""
    layer = make_layer(
        hidden=(5, 3), learning_rate=0.03, momentum=0.8, num_steps=8, factored=factored
    )
    x, index = flatten(make_sets((3, 0, 5, 1)))
    residual = layer.solve(x, index).residual
    layer.differentiation = Implicit(
        ConjugateGradients(5, tolerance=1e-3), float(residual.max()) * 0.99, fallback_steps=2
    )
    assert layer.solve(x, index).fallback.sum() == 1
    expected = gradients(layer, x, index)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    layer.zero_grad()
    compiled(x, index, dim_size=4).sin().sum().backward()
    found = {"x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}
    torch.compiler.reset()
    for name, gradient in expected.items():
        assert_near(found[name], gradient, 1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -1.0}, "tolerance is -1.0, expected 0 or more"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"fallback_steps": 0}, "fallback_steps is 0, expected an int of 1 or more"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Implicit(**options)


def test_repr():
    assert repr(Implicit(Cholesky(), 0.5, 3)) == "Implicit(Cholesky(ridge=0.0), 0.5, 3)"
