"""The convex potential against its formula and the plain sum, and as a module."""

import pytest
import torch
from convex_cases import (
    SIZES,
    batch,
    draw_y,
    each_depth,
    each_scaling,
    make_convex_layer,
    make_potential,
)

from cases import assert_near, flatten, make_sets
from equipool.ops import segments
from equipool.potentials import ConvexPotential
from equipool.potentials.base import AutogradSum


class Differentiated(ConvexPotential):
    """The same function with a forward of its own, so that its gradient is autograd's."""

    def forward(self, x, y):
        return super().forward(x, y)


def plain_potential(potential, x, y):
    """The formula of the docstring, for one element."""
    parameters = dict(potential.named_parameters())
    last = len(potential.hidden) - 1
    rows = parameters["from_y"].split(potential.hidden)
    u = x
    z = None
    for layer in range(last + 1):
        a = parameters[f"shifts.{layer}.weight"] @ u + parameters[f"shifts.{layer}.bias"]
        a = a + rows[layer] @ y
        if layer > 0:
            raw = parameters[f"raw_mixes.{layer - 1}"]
            a = a + torch.log(1 + raw.exp()) / raw.shape[1] @ (g * z)  # noqa: F821
        z = torch.log(1 + a.exp())
        u = parameters[f"features.{layer}.weight"] @ u + parameters[f"features.{layer}.bias"]
        u = u.tanh()
        g = parameters[f"gates.{layer}.weight"] @ u + parameters[f"gates.{layer}.bias"]
        g = 1 / (1 + (-g).exp())
    raw = parameters[f"raw_mixes.{last}"]
    output = torch.log(1 + raw.exp())[0] / raw.shape[1]
    slope = parameters["slope.weight"] @ u + parameters["slope.bias"]
    return output @ (g * z) + slope @ y


@each_depth
def test_forward_is_the_formula(hidden):
    potential = make_potential(hidden)
    x, y = draw_y(5, 3, seed=2), draw_y(5)
    found = potential(x, y)
    assert found.shape == (5,)
    for i in range(5):
        assert torch.allclose(found[i], plain_potential(potential, x[i], y[i]), rtol=1e-12)


@each_depth
@pytest.mark.parametrize("blocks", [False, True], ids=["", "in blocks"])
def test_the_factored_sum_is_the_plain_one(hidden, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(segments, "BLOCKED_FROM", 1)
        monkeypatch.setattr(segments, "BLOCK", 2)
    potential = make_potential(hidden)
    x, sets = batch()
    found, expected = potential.bind(x, sets), AutogradSum(potential, x, sets)
    for scale in (0.1, 3.0, 30.0):
        y = draw_y(sets.num_rows, scale=scale)
        assert_near(found.value(y), expected.value(y), 1e-12)
        assert_near(found.gradient(y), expected.gradient(y), 1e-12)
        v = draw_y(sets.num_rows, seed=6)
        assert_near(found.hessian(y)(v), expected.hessian(y)(v), 1e-12)


@each_depth
@each_scaling
def test_the_solve_and_its_gradients_are_those_of_the_plain_sum(hidden, scaling):
    x, index = flatten(make_sets(SIZES))
    fast = make_convex_layer(hidden, scaling)
    plain = make_convex_layer(hidden, scaling, kind=Differentiated)
    assert isinstance(plain.potential.bind(x, batch()[1]), AutogradSum)
    results = []
    for layer in (fast, plain):
        elements = x.clone().requires_grad_()
        solution = layer.solve(elements, index)
        loss = solution.y.sin().sum() + solution.energy.sum() + solution.aux_loss
        grads = torch.autograd.grad(loss, [elements, *layer.parameters()])
        results.append((solution.y, solution.energy, *grads))
    for found, expected in zip(*results, strict=True):
        assert_near(found, expected, 1e-10)


def test_a_product_with_the_hessian_leaves_no_trace():
    """Neither a graph, nor a change of the direction or of the products to come; nor does it follow
    autocast, as the gradient does not."""
    potential = make_potential().float()
    x, sets = batch()
    summed, y = potential.bind(x.float(), sets), draw_y(sets.num_rows).float()
    v = draw_y(sets.num_rows, seed=6).float()
    product, before = summed.hessian(y.requires_grad_()), v.clone()
    first = product(v)
    assert not first.requires_grad
    assert torch.equal(v, before)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(product(v), first)
        assert torch.equal(summed.hessian(y)(v), first)
