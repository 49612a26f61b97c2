"""A layer whose every step is by kernels against the same in float64, which has none."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from equipool import (
    EquilibriumAggregation,
    Implicit,
    Nesterov,
    ResNetPotential,
    ToTolerance,
    Truncated,
    record,
)


def make_layer(hidden=(9, 5, 3), **settings):
    torch.manual_seed(sum(hidden))
    potential = ResNetPotential(3, 6, hidden)
    layer = EquilibriumAggregation(3, 6, potential=potential, **{"steps": 2} | settings)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer, torch.randn(12, 3), torch.randint(0, 4, (12,))


def run(layer, x, index, **call):
    """Output, auxiliary loss and the gradients of x and of all parameters of a scalar of both."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    with record(diagnostics=True) as solutions:
        y = layer(x, index, dim_size=4, **call)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    ((weights * y).sum() + 0.1 * solutions.aux_loss).backward()
    return [y.detach(), solutions.aux_loss.detach(), x.grad, *(p.grad for p in layer.parameters())]


def assert_close(found, expected, tolerance=1e-4):
    for a, b in zip(found, expected, strict=True):
        assert (a.cpu().double() - b).norm() <= tolerance * b.norm().clamp(min=1e-3)


@pytest.mark.parametrize("hidden", [(7,), (20, 9, 3)])
def test_a_layer_agrees_with_float64(hidden, forced, device):
    layer, x, index = make_layer(hidden)
    expected = run(copy.deepcopy(layer).double(), x.double(), index)
    assert_close(run(layer.to(device), x.to(device), index.to(device)), expected)


def used_twice(layer, x, index):
    return layer(layer(x, index)[index][:, :3] + x, index)


def checkpointed(layer, x, index):
    return checkpoint(layer, x, index, use_reentrant=True)


def from_two_steps(layer, x, index):
    """Backward from a part of the path, and then from all of it."""
    path = layer.solve(x, index, trajectory=True).trajectory
    path[1].square().sum().backward(retain_graph=True)
    return path[2]


CASES = {
    "used twice": (used_twice, {}),
    "checkpointed": (checkpointed, {}),
    "from two steps": (from_two_steps, {}),
    "last steps": (EquilibriumAggregation.__call__, {"differentiation": Truncated(1)}),
    "not converged": (EquilibriumAggregation.__call__, {"differentiation": Implicit(tolerance=0)}),
    "implicit": (
        EquilibriumAggregation.__call__,
        {"differentiation": Implicit(tolerance=0.1), "steps": 20, "regularizer": 2.0},
    ),
    "stopping early": (EquilibriumAggregation.__call__, {"steps": ToTolerance(0.4, 4)}),
    "bounded steps": (
        EquilibriumAggregation.__call__,
        {"solver": Nesterov(0.5, 0.5, max_step=0.5, curvature_safe=True)},
    ),
}


@pytest.mark.parametrize(("call", "settings"), CASES.values(), ids=CASES)
def test_every_way_to_differentiate_agrees_with_float64(call, settings, forced, device):
    layer, x, index = make_layer((5, 3), **settings)
    wide, found = copy.deepcopy(layer).double(), []
    for model, elements in ((layer.to(device), x.to(device)), (wide, x.double())):
        elements.requires_grad_()
        call(model, elements, index.to(elements.device)).square().sum().backward()
        found.append([elements.grad, *(parameter.grad for parameter in model.parameters())])
    assert_close(*found, 1e-3)


def test_padding_changes_nothing(forced, device, monkeypatch):
    """Masked elements hold garbage, and stay in the batch as they do on a GPU."""
    monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: False)
    layer, x, index = make_layer()
    mask = torch.arange(12) % 3 > 0
    expected = run(copy.deepcopy(layer).double(), x[mask].double(), index[mask])
    expected[2] = torch.zeros(12, 3).double().index_copy(0, mask.nonzero()[:, 0], expected[2])
    x, index = torch.where(mask[:, None], x, torch.nan), torch.where(mask, index, 99)
    found = run(layer.to(device), x.to(device), index.to(device), mask=mask.to(device))
    assert_close(found, expected)


def test_bf16_products(forced, device):
    """Shorter products are close, and sums are not taken in them."""
    layer, x, index = make_layer((20, 16, 8))
    layer, x, index = layer.to(device), x.to(device), index.to(device)
    exact = layer(x, index, dim_size=4)
    with torch.autocast(device, torch.bfloat16):
        short = layer(x, index, dim_size=4)
    assert short.dtype == torch.float32
    assert 1e-6 < (short - exact).norm() / exact.norm() < 5e-2
