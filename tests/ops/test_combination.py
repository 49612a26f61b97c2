"""The fused combination of an energy's gradients against plain operations."""

import pytest
import torch

from equipool.ops import kernels
from equipool.ops.derivatives import combine


def run(device):
    torch.manual_seed(0)
    gradient, y = (torch.randn(5, 7, device=device, requires_grad=True) for _ in range(2))
    weights = [torch.rand(5, 1, device=device) for _ in range(2)]
    factor = torch.tensor(0.3, device=device, requires_grad=True)
    out = combine(gradient, weights[0], y, weights[1], factor)
    out.backward(torch.linspace(-1, 2, 35, device=device).view(5, 7))
    return [out, gradient.grad, y.grad, factor.grad]


@pytest.mark.parametrize("alone", [True, False])
def test_fused_combination(alone, device, forced, monkeypatch):
    if not alone:  # several programs, each with a sum of its own
        monkeypatch.setattr(kernels, "ALONE", 0)
        monkeypatch.setattr(kernels, "BLOCK", 16)
    fused = run(device)
    monkeypatch.setattr("equipool.ops.derivatives.kernels_serve", lambda x: False)
    for a, b in zip(fused, run(device), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_can_be_differentiated_again(device, forced):
    torch.manual_seed(0)
    gradient, y = (torch.randn(3, 2, device=device, requires_grad=True) for _ in range(2))
    weight = torch.ones(3, 1, device=device)
    factor = torch.tensor(0.3, device=device, requires_grad=True)
    out = combine(gradient, weight, y, weight, factor)
    (by_y,) = torch.autograd.grad(out.sum(), y, create_graph=True)
    (again,) = torch.autograd.grad(by_y.sum(), factor)
    assert again.item() == pytest.approx(6.0)
