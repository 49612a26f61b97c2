"""What the operation keeps between forward and backward, and who serves it."""

import sys
from types import SimpleNamespace

import pytest
import torch

from equipool import EquilibriumAggregation, ResNetPotential
from equipool.ops import execution


def saved_bytes(num_steps, num_elements=200):
    torch.manual_seed(0)
    potential = ResNetPotential(4, 3, (16, 8, 4))
    layer = EquilibriumAggregation(4, 3, potential=potential, num_steps=num_steps)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        kept.append(tensor)
        return tensor

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(torch.randn(num_elements, 4), torch.arange(num_elements) % 2, dim_size=2)
    del y
    return sum(saved.values())


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "Triton is not installed"),
        (SimpleNamespace(__version__="3.2.0"), r"Triton is too old \(3.2.0\)"),
    ],
)
def test_missing_triton_is_said_once(monkeypatch, found, told):
    monkeypatch.setitem(sys.modules, "triton", found)
    execution.triton_is_installed.cache_clear()
    with pytest.warns(UserWarning, match=f"{told}.*pip install"):
        assert not execution.triton_is_installed()
    assert not execution.triton_is_installed()  # a second warning would be an error
    execution.triton_is_installed.cache_clear()


def test_kernels_serve_only_where_they_can(monkeypatch):
    assert not execution.kernels_serve(torch.zeros(2))
    assert not execution.kernels_serve(torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("kept_parts", [0, 7, 1000])
def test_what_is_kept_changes_no_number(kept_parts, monkeypatch):
    """Nothing, the first steps, or all of them."""
    monkeypatch.setattr("equipool.ops.resnet_gradient.torch.KEPT_PARTS", kept_parts)

    def run(factored):
        torch.manual_seed(0)
        potential = ResNetPotential(4, 3, (16, 8, 4), factored=factored)
        layer = EquilibriumAggregation(4, 3, potential=potential, num_steps=12).double()
        x = torch.randn(50, 4, dtype=torch.float64, requires_grad=True)
        y = layer(x, torch.arange(50) % 3)
        return torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    for a, b in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_what_is_kept_is_bounded():
    x_part = 200 * (16 + 8 + 4) * 4
    few, many = saved_bytes(20), saved_bytes(60)
    assert few > 4 * x_part  # something is
    assert many - few <= 40 * 16 * 2 * 3 * 4
