"""`LocationPotential` in a layer, and `LocationPooling`."""

import copy

import pytest
import torch
from torch import nn

import equipool
from equipool import EquilibriumAggregation, Exact, Implicit, LocationPooling, LocationPotential
from equipool.objective import Minimum
from equipool.regularizers import QuadraticRegularizer, Regularizer

INDEX = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 3, 3, 3, 4])


def make_layer(out_channels=7, *, heads=2, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    potential = LocationPotential(3, out_channels, heads=heads)
    layer = EquilibriumAggregation(3, out_channels, potential=potential, dtype=dtype, **settings)
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer, torch.randn(len(INDEX), 3, dtype=dtype)


def with_newton(layer):
    """The same energy, searched step by step and differentiated implicitly."""
    return EquilibriumAggregation(
        3, layer.out_channels, potential=layer.potential, regularizer=layer.regularizer,
        solver=equipool.Newton(), differentiation=Implicit("cholesky"),
        steps=equipool.FixedSteps(60, tolerance=1e-8),
    ).double()  # fmt: skip


class PullOfChannels(Regularizer):
    """One weight for each channel."""

    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, y):
        return (self.weights * y.square()).sum(-1)

    def bind(self):
        return QuadraticRegularizer(2 * self.weights)


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("regularizer", [None, 0.5, "channels"])
@pytest.mark.parametrize("scaling", ["log", "sum"])
def test_it_is_the_minimum_that_newton_finds_and_its_gradient(heads, regularizer, scaling):
    if regularizer == "channels":
        regularizer = PullOfChannels(torch.rand(7, dtype=torch.float64))
    layer, x = make_layer(heads=heads, regularizer=regularizer, scaling=scaling)
    other = with_newton(layer)
    other.scaling = scaling
    found = []
    for one in (layer, other):
        layer.zero_grad()
        given = x.clone().requires_grad_()
        y = one(given, INDEX, dim_size=6)
        y.square().sum().backward()
        gradients = [p.grad for p in layer.parameters() if p.requires_grad]
        found.append([y, given.grad, *(g for g in gradients if g is not None)])
    assert len(found[0]) == len(found[1])
    for exact, searched in zip(*found, strict=True):
        assert torch.allclose(exact, searched, atol=1e-7)


def test_a_solution_has_a_certificate():
    layer, x = make_layer(dtype=torch.float32)
    solution = layer.solve(x, INDEX, dim_size=6)
    truth = copy.deepcopy(layer).double()(x.double(), INDEX, dim_size=6)
    assert solution.converged.all()
    rounding = 1e-6  # of the features in float32
    assert ((solution.y - truth).abs().amax(1) <= solution.error_bound + rounding).all()
    assert (solution.error_bound < 1e-5).all()
    assert solution.residual.max() < 1e-5
    assert solution.num_steps[2] == 0
    assert solution.num_steps.max() <= solution.max_steps == 80
    assert solution.aux_loss == 0
    energy = layer.energy(x, INDEX, dim_size=6)
    assert (energy(solution.y) <= energy(solution.y + 0.01) + 1e-6).all()
    assert not layer.solve(x, INDEX, dim_size=6, steps=1).converged[:2].any()


def test_every_parameter_has_a_gradient():
    """DDP stalls on one without."""
    layer, x = make_layer(dtype=torch.float32)
    layer(x, INDEX).sum().backward()
    assert all(p.grad is not None for p in layer.parameters() if p.requires_grad)


def test_empty_and_invalid_sets():
    start = equipool.LearnedStart(7, value=2.0)
    layer, x = make_layer(dtype=torch.float32, start=start)
    clean = layer(x, INDEX, dim_size=6)
    assert (clean[[2, 5]] == 2).all()
    x[0, 0] = torch.nan
    y = layer(x, INDEX, dim_size=6)
    assert y[0].isnan().all()
    assert torch.equal(y[1:], clean[1:])


def test_features_may_be_a_module_or_the_elements():
    x = torch.tensor([[0.0, 5.0], [1.0, 5.0], [5.0, 8.0]])
    potential = LocationPotential(2, 2, asymmetries=1, features=nn.Identity())
    with torch.no_grad():
        potential.raw_width.fill_(-100)  # narrow: the median
    assert torch.allclose(EquilibriumAggregation(2, 2, potential=potential)(x), x[1:2], atol=1e-3)
    wrong = LocationPotential(2, 6, features=nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"features .*expected \[3, 2\]"):
        EquilibriumAggregation(2, 6, potential=wrong)(x)


class SummedDistance(equipool.potentials.SummedPotential):
    def __init__(self, x, sets):
        self.x, self.sets = x, sets

    def value(self, y):
        return self.sets.sum((self.x - self.sets.spread(y)).square().sum(-1)) / 2

    def gradient(self, y):
        return self.sets.sum(self.sets.spread(y) - self.x)

    def minimum(self, pull, max_passes):
        counts = self.sets.totals.unsqueeze(-1)
        pull = 1e-30 if pull is None else pull
        y = self.sets.sum(self.x) / (counts + pull)
        return Minimum(y, torch.zeros_like(y[:, 0]), torch.ones_like(self.sets.counts))


class Distance(equipool.potentials.Potential):
    """A potential of one's own whose minimum is known."""

    exact, regularizer_weight = True, 0.0

    def forward(self, x, y):
        return (x - y).square().sum(-1) / 2

    def bind(self, x, sets):
        return SummedDistance(x, sets)


def test_a_potential_of_ones_own_brings_its_minimum():
    x = torch.randn(len(INDEX), 3)
    layer = EquilibriumAggregation(3, 3, potential=Distance())
    expected = equipool.functional.mean(x, INDEX, dim_size=6)
    assert torch.allclose(layer(x, INDEX, dim_size=6), expected, atol=1e-6)
    pulled = EquilibriumAggregation(3, 3, potential=Distance(), regularizer=0.5, scaling="sum")
    expected = x.sum(0, keepdim=True) / (len(x) + 1)
    assert torch.allclose(pulled(x), expected, atol=1e-6)


class Quartic(Regularizer):
    def forward(self, y):
        return y.pow(4).sum(-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regularizer": Quartic()}, "Quartic"),
        ({"differentiation": Implicit()}, "differentiation"),
        ({"potential": equipool.ResNetPotential(3, 7), "solver": Exact()}, "minimum"),
    ],
)
def test_what_has_no_exact_minimum_is_refused(settings, message):
    def call():
        make = {"potential": LocationPotential(3, 7), **settings}
        return EquilibriumAggregation(3, 7, **make)(torch.randn(4, 3))

    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_the_pooling_contains_mean_maximum_minimum_and_deviation():
    pool, x = LocationPooling(3, 15, heads=0, scalers=False), 2 * torch.randn(len(INDEX), 3)
    potential = pool.layer.potential
    with torch.no_grad():
        potential.raw_width.fill_(1.5)  # wide: expectiles
        potential.raw_asymmetry.mul_(6)  # the outermost are 0.00001 and 0.99999
        pool.linear.weight[:12].copy_(torch.eye(12))
        pool.linear.bias.zero_()
    found = pool(x, INDEX)[:, :12]
    low, mean, high = found[:, :9].unflatten(1, (3, 3)).unbind(-1)
    for number in INDEX.unique():
        own = x[number == INDEX]
        assert torch.allclose(mean[number], own.mean(0), atol=1e-2)
        assert torch.allclose(low[number], own.amin(0), atol=1e-2)
        assert torch.allclose(high[number], own.amax(0), atol=1e-2)
        deviation = own.std(0, unbiased=False)
        assert torch.allclose(found[number, 9:], deviation, atol=1e-2)


def test_the_pooling_in_every_layout_and_precision():
    pool, x = LocationPooling(3, 8), torch.randn(len(INDEX), 3)
    y = pool(x, INDEX, dim_size=6)
    assert y.shape == (6, 8)
    assert y.isfinite().all()
    ptr = torch.bincount(INDEX, minlength=6).cumsum(0)
    assert torch.allclose(pool(x, ptr=nn.functional.pad(ptr, (1, 0))), y, atol=1e-6)
    order = torch.randperm(len(INDEX))
    assert torch.allclose(pool(x[order], INDEX[order], dim_size=6), y, atol=1e-6)
    pool.bfloat16()
    assert (pool(x.bfloat16(), INDEX, dim_size=6) - y).abs().max() < 0.2
