"""What the operation keeps between forward and backward, and who serves it."""

import importlib.util

import pytest
import torch

from equipool import EquilibriumAggregation, ResNetPotential
from equipool.ops import availability


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


def test_nothing_per_element_is_kept_for_a_step():
    """Forty steps more may keep some tensors of the sets' size each, 2 x 3 floats or a scalar."""
    grown = saved_bytes(50) - saved_bytes(10)
    assert grown <= 40 * 16 * 2 * 3 * 4


def test_third_derivative_is_refused():
    layer = EquilibriumAggregation(3, 4)
    x = torch.randn(5, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="factored=False"):
        gradient.sum().backward()


def test_missing_triton_is_said_once(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    availability.triton_is_installed.cache_clear()
    with pytest.warns(UserWarning, match="Triton is not installed.*pip install triton"):
        assert not availability.triton_is_installed()
    assert not availability.triton_is_installed()  # a second warning would be an error
    availability.triton_is_installed.cache_clear()


def test_kernels_serve_only_where_they_can(monkeypatch):
    assert not availability.kernels_serve(torch.zeros(2))
    assert not availability.kernels_serve(torch.zeros(2, dtype=torch.float64))
