"""The layer's gradients against finite differences, and that nothing goes without one."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from cases import SCALINGS, flatten, make_layer, make_sets
from equipool import ConvexPotential, LearnedStart


def as_function(layer, index, num_sets, outcome):
    """The layer as a function of x and of its parameters, for gradcheck."""
    names = [name for name, _ in layer.named_parameters()]

    class Outcome(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return outcome(self.layer.solve(x, index, dim_size=num_sets))

    def function(x, *parameters):
        named = {f"layer.{name}": p for name, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Outcome(), named, (x,))

    return function


def check(layer, outcome, checker=gradcheck):
    x, index = flatten(make_sets((2, 0, 3), layer.in_channels))
    order = torch.tensor([3, 0, 4, 1, 2])
    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    inputs = (x[order].requires_grad_(), *parameters)
    assert checker(as_function(layer, index[order], 3, outcome), inputs)


OUTCOMES = {
    "y": lambda solution: solution.y,
    "energy": lambda solution: solution.energy,
    "aux_loss": lambda solution: solution.aux_loss,
}


@pytest.mark.parametrize("factored", [True, False], ids=["factored", "autograd"])
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_gradcheck(scaling, outcome, factored):
    start = LearnedStart(3, 0.2)
    layer = make_layer(2, 3, (4, 3), scaling=scaling, num_steps=3, start=start, factored=factored)
    check(layer, outcome)


@pytest.mark.parametrize("hidden", [(5,), (5, 5, 2), (4, 3, 3, 2)])
def test_gradcheck_of_other_depths(hidden):
    check(make_layer(2, 3, hidden, num_steps=2, reduction="sum"), OUTCOMES["y"])


@pytest.mark.parametrize(
    ("hidden", "scaling", "checker"),
    [((3,), "sum", gradcheck), ((2, 2, 3), "mean", gradcheck), ((2, 2), "log", gradgradcheck)],
)
def test_convex(hidden, scaling, checker):
    layer = make_layer(2, 2, num_steps=2, scaling=scaling)
    layer.potential = ConvexPotential(2, 2, hidden).double()
    check(layer, OUTCOMES["y"], checker)


def test_gradcheck_with_clip():
    check(make_layer(2, 3, (4, 3), num_steps=4, clip_value=0.1), OUTCOMES["y"])


def test_second_order():
    """A gradient penalty or a meta-learner differentiates the layer's gradient once more."""
    check(make_layer(1, 2, (3, 2), num_steps=2, factored=False), OUTCOMES["y"], gradgradcheck)


def test_x_without_gradient_and_frozen_parameters():
    layer = make_layer()
    x, index = flatten(make_sets((3, 5)))
    assert x.grad_fn is None
    layer(x, index).sum().backward()
    assert x.grad is None
    layer.requires_grad_(False)
    x.requires_grad_()
    layer(x, index).sum().backward()
    assert x.grad.abs().max() > 0
