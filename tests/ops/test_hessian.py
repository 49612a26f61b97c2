"""Values and Hessian products of the factored operation against automatic differentiation."""

import copy

import pytest
import torch

from equipool import EquilibriumAggregation, Implicit, Nesterov, ResNetPotential, SquaredNorm

HIDDEN = [(7,), (5, 3), (8, 8, 8), (20, 9, 3)]


def make_energy(layer, x, index, num_sets):
    x, sets = layer._gather(x, index, None, None, num_sets)
    return layer.bind(x, sets)


def make_layer(hidden):
    torch.manual_seed(sum(hidden))
    layer = EquilibriumAggregation(3, 6, potential=ResNetPotential(3, 6, hidden))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def make_case(hidden, num_elements=14, num_sets=4):
    """A layer, a batch of sets of which the last is empty, and the same in float64, plainly."""
    layer = make_layer(hidden)
    plain = copy.deepcopy(layer).double()
    plain.potential.factored = False
    x, index = torch.randn(num_elements, 3), torch.randint(0, num_sets - 1, (num_elements,))
    y, direction = torch.randn(num_sets, 6), torch.randn(num_sets, 6)
    reference = make_energy(plain, x.double(), index, num_sets)
    value = reference.value(y.double())
    product = torch.func.jvp(reference.gradient, (y.double(),), (direction.double(),))[1]
    return layer, x, index, y, direction, value, product


def check(layer, x, index, y, direction, value, product, device, tolerance):
    dtype = next(layer.parameters()).dtype
    moved = [t.to(device, dtype if t.is_floating_point() else None) for t in (x, index)]
    energy = make_energy(layer.to(device), *moved, y.shape[0])
    y, direction = (t.to(device, dtype) for t in (y, direction))
    with torch.no_grad():
        found = energy.value(y)
    assert (found.cpu().double() - value).norm() <= tolerance * value.norm()
    along = energy.hessian(y)(direction)
    assert not along.requires_grad
    assert (along.cpu().double() - product).norm() <= tolerance * product.norm()


@pytest.mark.parametrize("hidden", HIDDEN)
def test_torch_operations(hidden):
    layer, *rest = make_case(hidden)
    check(layer.double(), *rest, "cpu", 1e-12)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_kernels(hidden, forced, device):
    check(*make_case(hidden), device, 2e-5)


def test_kernels_in_parts(forced, device, monkeypatch):
    monkeypatch.setattr("equipool.ops.resnet_gradient.triton.LARGEST_PART", 16)
    check(*make_case((9, 5, 3), num_elements=40, num_sets=3), device, 2e-5)


def test_a_product_leaves_the_sums_of_a_backward_pass_alone(forced, device):
    """Within a backward pass, the steps add up what they share; a Hessian product must not."""

    def gradients(disturb):
        layer = make_layer((9, 5, 3)).to(device)
        x, index = torch.randn(9, 3, device=device), torch.arange(9, device=device) % 3
        energy = make_energy(layer, x, index, 3)
        y = torch.randn(3, 6, device=device, requires_grad=True)
        gradient = energy.gradient(y)
        again = energy.gradient(y + 0.1 * gradient)
        if disturb:
            product = energy.hessian(y.detach())
            gradient.register_hook(lambda by: (product(by), by)[1])
        again.sum().backward()
        return [p.grad for p in layer.potential.parameters()]

    for a, b in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(a, b)


def test_steps_that_nothing_depends_on_are_not_differentiated(forced, device, monkeypatch):
    """All sets have converged, so no gradient passes through the implicit way's last steps."""
    from equipool.ops.resnet_gradient import triton

    torch.manual_seed(0)
    layer = EquilibriumAggregation(
        3, 2, potential=ResNetPotential(3, 2, (5, 3)), regularizer=SquaredNorm(50.0),
        solver=Nesterov(0.02, 0.0), differentiation=Implicit(tolerance=1e-2), num_steps=12,
    ).to(device)  # fmt: skip
    calls, vjp = [], triton.Evaluator.vjp
    monkeypatch.setattr(triton.Evaluator, "vjp", lambda *args: (calls.append(1), vjp(*args))[1])
    solution = layer.solve(torch.randn(12, 3, device=device), torch.arange(12, device=device) % 2)
    solution.y.sum().backward()
    assert not solution.fallback.any()
    assert len(calls) == 1
