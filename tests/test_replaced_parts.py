"""What happens when a user changes the layer's parts."""

import pytest
import torch

from cases import make_layer
from equipool import EquilibriumAggregation, LearnedStart, Nesterov


def test_backward_inside_autocast():
    layer = make_layer(dtype=torch.float32)
    x = torch.randn(6, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    inside = [x.grad, *(p.grad for p in layer.potential.parameters())]
    x.grad = None
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.sum().backward()
    for a, b in zip(inside, [x.grad, *(p.grad for p in layer.potential.parameters())], strict=True):
        assert (a - b).norm() <= 0.05 * b.norm()


def test_scalars_are_exact_in_every_precision():
    assert Nesterov(0.1).double().learning_rate == 0.1
    assert Nesterov(0.1).bfloat16().learning_rate == torch.tensor(0.1)


def test_scaling_is_checked_when_it_is_changed():
    with pytest.raises(ValueError, match="scaling is 'max', expected one of"):
        make_layer().scaling = "max"


def test_autocast_does_not_bring_float64_and_float32_together():
    layer = make_layer(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="x has dtype"):
        layer(torch.randn(4, 3).double())


def test_scalars_return_after_memory_was_handed_out_anew():
    """As in deferred initialisation: built on the meta device, given memory, then reset."""
    with torch.device("meta"):
        layer = EquilibriumAggregation(3, 4, solver=Nesterov(0.3, 0.8))
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.solver.learning_rate == torch.tensor(0.3)
    assert layer.solver.momentum == torch.tensor(0.8)
    assert torch.isfinite(layer(torch.randn(5, 3))).all()


def test_a_start_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"start's out_channels is 3, expected 4"):
        EquilibriumAggregation(3, 4, start=LearnedStart(3))
