"""Whether a layer is the same as before: what a recorded solve or a kept output would miss."""

import copy

import pytest
import torch
from torch import nn

from equipool import EquilibriumAggregation, GradientDescent, Truncated
from equipool.layer_identity import LayerIdentity, freeze, settings
from equipool.potentials import FrechetMean


@pytest.fixture
def layer():
    return EquilibriumAggregation(3, 4)


def parametrize(layer):
    nn.utils.parametrizations.weight_norm(layer.potential.linears[0])


def test_training_is_no_change(layer):
    identity = LayerIdentity(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    layer.eval()
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert identity.holds()


def test_trainable_parameters_are_listed_once(layer):
    layer.potential.linears[1].requires_grad_(False)
    layer.twin = layer.potential
    expected = [id(p) for p in layer.parameters() if p.requires_grad]
    assert [id(p) for p in LayerIdentity(layer).trainable] == expected


class Own(nn.Module):
    def forward(self, x, y):
        return (x - y).square().sum(-1)


UNKNOWN = {
    "parametrization": parametrize,
    "hook": lambda layer: layer.potential.linears[0].register_forward_hook(print),
    "backward hook": lambda layer: layer.potential.register_full_backward_hook(print),
    "module": lambda layer: setattr(layer, "potential", Own()),
    "function": lambda layer: setattr(layer, "potential", FrechetMean(Own.forward)),
    "tensor": lambda layer: setattr(layer.potential, "bias", torch.zeros(3)),
    "dictionary": lambda layer: setattr(layer.potential, "options", {}),
}


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_what_may_run_other_code_is_not_known(layer, change):
    assert LayerIdentity(layer).known
    change(layer)
    assert not LayerIdentity(layer).known


def test_frozen_values_compare_types_and_attributes():
    assert freeze(Truncated(2)) == freeze(Truncated(2)) != freeze(Truncated(3))
    assert freeze((1, [2.0, "a"])) == freeze((1, [2.0, "a"])) != freeze([1, [2.0, "a"]])
    assert freeze(len) is freeze([torch.zeros(1)]) is None


def test_settings_name_what_differs(layer):
    other = EquilibriumAggregation(3, 4)
    assert settings(layer) == settings(other)
    other.potential.norms[0].eps = 0.1
    other.steps = 3
    other.solver = GradientDescent().eval()
    found, expected = settings(other), settings(layer)
    different = {name for name in found.keys() | expected if found.get(name) != expected.get(name)}
    assert {"_steps", "potential.norms.0.eps", "solver.class", "solver.training"} <= different
    assert not any(name.startswith(("regularizer", "potential.linears")) for name in different)
