"""What every solver owes to the loop and to the layer."""

import itertools
import math

import pytest
import torch
from energies import (
    Function,
    assert_energy_never_rises,
    banana,
    cliff,
    random_quadratic,
    random_rugged,
    states_of,
)
from hypothesis import given
from hypothesis import strategies as st

from cases import flatten, make_sets
from equipool import EquilibriumAggregation, ResNetPotential, SquaredNorm, descent
from equipool.differentiation import Truncated
from equipool.objective import Bounds
from equipool.potentials.convex import ConvexPotential
from equipool.solvers import Newton, SafeguardedNesterov, StronglyConvexNesterov
from equipool.solvers.momentum import GradientDescent, Nesterov
from equipool.steps import ToTolerance

SOLVERS = {
    "Nesterov": lambda: Nesterov(0.05, 0.7),
    "momentum": lambda: GradientDescent(0.05, 0.7),
    "bounded": lambda: Nesterov(0.05, 0.7, max_step=3.0, curvature_safe=True),
    "GradientDescent": lambda: GradientDescent(0.1),
    "SafeguardedNesterov": lambda: SafeguardedNesterov(),
    "Newton": lambda: Newton(),
    "Newton after": lambda: Newton(after=Nesterov(0.05, 0.7), num_steps=2),
    "StronglyConvexNesterov": lambda: StronglyConvexNesterov(),
}
every_solver = pytest.mark.parametrize("name", SOLVERS)
seeds, exponents = st.integers(0, 2**31), st.integers(-6, 6)


def make(name, dtype=torch.float64, **options):
    torch.manual_seed(3)
    convex = name == "StronglyConvexNesterov"
    potential = ConvexPotential(3, 4, (8, 6)) if convex else ResNetPotential(3, 4, (16, 8))
    return EquilibriumAggregation(
        3, 4, potential=potential, regularizer=SquaredNorm(0.3), solver=SOLVERS[name](), **options
    ).to(dtype)


@every_solver
@given(seeds)
def test_rows_know_nothing_of_each_other(name, seed):
    """To the bit, as the same operations run on every row."""
    objective = random_rugged(5, 3, 1.0, seed)
    objective.known_bounds = Bounds(*(torch.linspace(low, 60, 5).double() for low in (1, 50)))
    y = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = torch.tensor([1, 4])
    fewer = objective.restrict(rows)
    fewer.known_bounds = Bounds(*(bound[rows] for bound in objective.bounds()))
    solver = SOLVERS[name]()
    together = states_of(solver, objective, y, 8)
    apart = states_of(solver, fewer, y[rows], 8)
    for a, b in zip(together, apart, strict=True):
        assert torch.equal(a.y[rows], b.y)
        assert torch.equal(a.point[rows], b.point)


@every_solver
def test_the_gradient_is_taken_where_the_state_says(name):
    objective = random_quadratic(3, 4, 20.0, 0)
    objective.known_bounds = Bounds(torch.ones(3).double(), torch.full((3,), 20.0).double())
    states = states_of(SOLVERS[name](), objective, torch.zeros(3, 4).double(), 12)
    for before, after in itertools.pairwise(states):
        assert torch.equal(after.gradient, objective.gradient(before.point))


@every_solver
def test_compaction_equals_masking(name, monkeypatch):
    """Sets that have stopped are dropped without a graph, and masked with one."""
    x, index = flatten(make_sets((1, 30, 0, 2, 9, 4)))
    layer = make(name, steps=ToTolerance(1e-4, 1000))
    compactions = []
    put_rows = descent.put_rows
    monkeypatch.setattr(descent, "put_rows", lambda *a: compactions.append(1) or put_rows(*a))
    masked = layer.solve(x, index)
    assert not compactions
    with torch.no_grad():
        compacted = layer.solve(x, index)
    assert compactions
    assert torch.equal(masked.num_steps, compacted.num_steps)
    torch.testing.assert_close(compacted.y, masked.y.detach(), atol=1e-10, rtol=1e-10)
    assert masked.num_steps.min() < masked.num_steps.max()


@every_solver
def test_stopping_early_is_reported(name):
    x, index = flatten(make_sets((3, 5, 0, 8)))
    layer = make(name, steps=ToTolerance(1e-6, 2000))
    solution = layer.solve(x, index)
    assert bool(solution.converged.all())
    assert solution.residual.max() <= 1e-6
    assert solution.num_steps[2] == 1
    layer.steps = ToTolerance(1e-6, 1)
    assert not layer.solve(x, index).converged[0]


@every_solver
def test_every_way_to_run(name):
    x, index = flatten(make_sets((3, 5, 2), dtype=torch.float32))
    layer = make(name, torch.float32, steps=6)
    y = layer(x, index)
    with torch.no_grad():
        assert torch.equal(layer(x, index), y)
    with torch.inference_mode():
        assert torch.equal(layer(x, index), y)
        layer.steps = ToTolerance(1e-3, 6)
        assert layer(x, index).isfinite().all()
    double = make(name, steps=6)
    torch.testing.assert_close(double(x.double(), index).float(), y, atol=1e-3, rtol=1e-3)


@every_solver
def test_bfloat16(name):
    """The energy is rough there; what it is minimised to must not be nonsense."""
    x, index = flatten(make_sets((3, 5, 2), dtype=torch.bfloat16))
    layer = make(name, torch.bfloat16, steps=12)
    y = layer(x, index)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    for parameter in filter(lambda one: one.requires_grad, layer.parameters()):
        assert bool(parameter.grad.isfinite().all())
    start = layer.energy(x, index)(torch.zeros_like(y))
    assert bool((layer.energy(x, index)(y) < start).all())


@every_solver
@pytest.mark.parametrize("differentiation", ["Unrolled", "Truncated"])
def test_gradients(name, differentiation):
    """Every parameter has one, learned scalars too, and only those of a fixed solver have none."""
    x, index = flatten(make_sets((3, 5, 2)))
    layer = make(name, steps=5)
    if differentiation == "Truncated":
        layer.differentiation = Truncated(3)
    layer(x, index).square().sum().backward()
    for parameter in filter(lambda one: one.requires_grad, layer.parameters()):
        assert bool(parameter.grad.isfinite().all())
    for parameter in filter(lambda one: one.requires_grad, layer.solver.parameters()):
        assert parameter.grad != 0


@pytest.mark.parametrize("name", sorted(SOLVERS.keys() - {"Newton", "Newton after"}))
@given(seeds)
def test_unrolled_gradients_are_those_of_finite_differences(name, seed):
    """But for those with a matrix, which is a constant to the gradient and not to the
    differences."""
    objective = Function(
        lambda y: (y.square() + 0.4 * torch.cos(2 * y + y.sum(-1, keepdim=True))).sum(-1)
    )
    objective.known_bounds = Bounds(torch.ones(2).double(), torch.full((2,), 9.0).double())
    solver = SOLVERS[name]().double()
    y = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def end(y):
        return states_of(solver, objective, y, 4)[-1].y

    assert torch.autograd.gradcheck(end, y.requires_grad_())


# Solvers that look at the energy before they take a step.
TESTING = {"Newton": lambda rate: Newton(), "SafeguardedNesterov": SafeguardedNesterov}
every_testing_solver = pytest.mark.parametrize("name", TESTING)


@every_testing_solver
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(seeds, exponents, exponents)
def test_energy_never_rises(name, dtype, seed, exponent, scale):
    """Whatever the energy, and however wrong the first step size."""
    objective = random_rugged(4, 3, 10.0**scale, seed, dtype)
    y = 3 * torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)
    states = states_of(TESTING[name](10.0**exponent), objective, y, 15 if name == "Newton" else 60)
    for before, after in itertools.pairwise(states):
        assert_energy_never_rises(objective, [before.y, after.y])
        # a search may also be stopped where its gradient is taken
        assert_energy_never_rises(objective, [after.y, after.point])
    if name == "SafeguardedNesterov":  # nor does rounding add up
        assert_energy_never_rises(objective, [state.y for state in states])


@every_testing_solver
@pytest.mark.parametrize("rate", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("height", [0.01, 1.0, 10.0])
def test_beyond_the_cliff_is_no_number(name, rate, height):
    objective = Function(cliff, torch.full((1, 2), height, dtype=torch.float64))
    states = states_of(TESTING[name](rate), objective, torch.zeros(1, 2).double(), 250)
    assert_energy_never_rises(objective, [state.y for state in states])
    torch.testing.assert_close(states[-1].y, torch.full_like(states[0].y, 1 - height / 20))


@every_testing_solver
@pytest.mark.parametrize("rate", [1e-6, 1e6])
def test_minimum_of_a_curved_valley(name, rate):
    objective = Function(banana, torch.full((1,), 100.0, dtype=torch.float64))
    y = torch.tensor([[-1.2, 1.0]], dtype=torch.float64)
    states = states_of(TESTING[name](rate), objective, y, 40 if name == "Newton" else 800)
    tolerance = 1e-10 if name == "Newton" else 1e-6
    torch.testing.assert_close(states[-1].y, torch.ones_like(y), atol=tolerance, rtol=0)
    assert_energy_never_rises(objective, [state.y for state in states])


@every_testing_solver
def test_an_energy_without_a_bottom_is_not_followed_there(name):
    objective = Function(lambda y: torch.where(y > 1, -math.inf, -y).sum(-1))
    for state in states_of(TESTING[name](0.125), objective, torch.zeros(1, 2).double(), 30):
        assert bool(objective.value(state.y).isfinite().all())
        assert bool(objective.value(state.point).isfinite().all())


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
@every_solver
def test_compiles_whole(name):
    x, index = flatten(make_sets((3, 5, 2)))
    layer = make(name, steps=3 if name == "Newton after" else 1)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, index, dim_size=3), layer(x, index))
