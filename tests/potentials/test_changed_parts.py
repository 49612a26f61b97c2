"""A `ResNetPotential` whose parts a user has changed: its gradient is that of its energy."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

from cases import make_sets
from equipool import EquilibriumAggregation, ResNetPotential
from equipool.potentials.resnet import FactoredSum
from equipool.sets import gather_sets

SIZES = (2, 3)


class Doubled(ResNetPotential):
    def forward(self, x, y):
        return 2 * super().forward(x, y)


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class OnePlusScale(nn.LayerNorm):
    """The same forward, and another scale than the one that is stored."""

    def __getattr__(self, name):
        found = super().__getattr__(name)
        return 1 + found if name == "weight" else found


def double(module, args, output):
    return 2 * output


def double_input(module, args):
    return tuple(2 * arg for arg in args)


def set_forward(potential):
    original = potential.forward
    potential.forward = lambda x, y: 3 * original(x, y)


def set_part_forward(potential):
    linear = potential.linears[1]
    linear.forward = lambda z: nn.functional.linear(z, 2 * linear.weight, linear.bias)


def replaced(part, make):
    def change(potential):
        getattr(potential, part)[0] = make()

    return change


def resized(potential):
    """Two layers of another width, which fit each other."""
    potential.linears[0], potential.skips[0] = nn.Linear(7, 9), nn.Linear(7, 9)
    potential.norms[0] = nn.LayerNorm(9)
    potential.linears[1], potential.skips[1] = nn.Linear(9, 5), nn.Linear(9, 5)


# What is changed, and whether the fast operation still serves.
CHANGES = {
    "nothing": (lambda potential: None, True),
    "eps": (lambda p: setattr(p.norms[1], "eps", 0.5), False),
    "linear without bias": (replaced("linears", lambda: nn.Linear(7, 8, bias=False)), False),
    "norm without bias": (replaced("norms", lambda: nn.LayerNorm(8, bias=False)), False),
    "norm without scale": (
        replaced("norms", lambda: nn.LayerNorm(8, elementwise_affine=False)),
        False,
    ),
    "weight norm": (lambda p: nn.utils.parametrizations.weight_norm(p.linears[0]), False),
    "own forward": (set_forward, False),
    "own forward of a part": (set_part_forward, False),
    "subclass of a linear": (replaced("linears", lambda: Shifted(7, 8)), False),
    "subclass with another scale": (replaced("norms", lambda: OnePlusScale(8)), False),
    "no norm": (replaced("norms", nn.Identity), False),
    "resized": (resized, False),
    "hook on the potential": (lambda p: p.register_forward_hook(double), False),
    "pre-hook on the potential": (lambda p: p.register_forward_pre_hook(double_input), False),
    "hook on a linear": (lambda p: p.linears[1].register_forward_hook(double), False),
    "old weight norm": (lambda p: nn.utils.weight_norm(p.linears[0]), False),
}


def check(potential, factored):
    """Its energy, its gradient, and both on every path, against the module itself."""
    potential = potential.double()
    x, sets = gather_sets(torch.cat(make_sets(SIZES)), torch.tensor([0, 0, 1, 1, 1]))
    y = torch.randn(2, 4, dtype=torch.float64)
    summed = potential.bind(x, sets)
    assert isinstance(summed, FactoredSum) == factored

    def value(y):
        return sets.sum(potential(x, y[sets.index]))

    with torch.no_grad():
        torch.testing.assert_close(summed.value(y), value(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(summed.value(y), value(y), rtol=1e-12, atol=1e-12)
    step = 1e-5
    found = summed.gradient(y).detach()
    with torch.no_grad():
        for k in range(4):
            unit = step * torch.eye(4, dtype=torch.float64)[k]
            numeric = (value(y + unit) - value(y - unit)) / (2 * step)
            torch.testing.assert_close(found[:, k], numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_the_gradient_is_that_of_the_energy(name):
    potential = ResNetPotential(3, 4, (8, 5, 3))
    change, factored = CHANGES[name]
    change(potential)
    check(potential, factored)


def test_a_subclass():
    check(Doubled(3, 4, (8, 5, 3)), factored=False)


@pytest.mark.parametrize("where", ["potential", "part", "everywhere"])
def test_backward_hooks_are_called(where):
    potential, seen = ResNetPotential(3, 4, (8, 5, 3)), []

    def hook(module, by_input, by_output):
        seen.append(module)

    register = {
        "potential": potential.register_full_backward_hook,
        "part": potential.linears[1].register_full_backward_hook,
        "everywhere": modules.register_module_full_backward_hook,
    }[where]
    layer = EquilibriumAggregation(3, 4, potential=potential, steps=3).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(layer(x).sum(), list(potential.parameters()))
    handle = register(hook)
    try:
        found = torch.autograd.grad(layer(x).sum(), list(potential.parameters()))
    finally:
        handle.remove()
    assert seen
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


TRANSFORMS = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_that_the_fast_operation_does_not_give(name):
    layer = EquilibriumAggregation(3, 4, steps=2).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"factored=False|implement the jvp function"):
        TRANSFORMS[name](layer, x)
    layer.potential.factored = False
    TRANSFORMS[name](layer, x)
