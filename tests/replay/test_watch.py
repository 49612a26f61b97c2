"""Changes to modules that a recorded solve would miss are noticed."""

import copy

import pytest
import torch
from torch import nn

from equipool import EquilibriumAggregation, GradientDescent
from equipool.replay.watch import Watch


@pytest.fixture
def layer():
    return EquilibriumAggregation(3, 4)


def replace_parameter(layer):
    layer.potential.linears[0].weight = nn.Parameter(torch.zeros(8, 7))


def move_parameter(layer):
    weight = layer.potential.linears[0].weight
    weight.data = weight.data.clone()


def replace_layer(layer):
    layer.potential.linears[0] = nn.Linear(7, 8)


def replace_solver(layer):
    layer.solver = GradientDescent()


def shadow_forward(layer):
    layer.potential.forward = lambda x, y: (x - y).square().sum(-1)


def parametrize(layer):
    nn.utils.parametrizations.weight_norm(layer.potential.linears[0])


CHANGES = {
    "parameter replaced": replace_parameter,
    "parameter moved": move_parameter,
    "converted": lambda layer: layer.double(),
    "frozen": lambda layer: layer.potential.linears[0].requires_grad_(False),
    "layer replaced": replace_layer,
    "solver replaced": replace_solver,
    "setting": lambda layer: setattr(layer.potential.norms[1], "eps", 1e-3),
    "solver's setting": lambda layer: setattr(layer.solver, "gtol", 1e-3),
    "hook": lambda layer: layer.potential.linears[0].register_forward_hook(print),
    "own forward": shadow_forward,
    "parametrization": parametrize,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(layer, change):
    watch = Watch(layer)
    assert watch.holds()
    change(layer)
    assert not watch.holds()


def test_training_changes_nothing(layer):
    watch = Watch(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    layer.eval()
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert watch.holds()


def test_trainable_parameters_are_listed_once(layer):
    layer.potential.linears[1].requires_grad_(False)
    layer.twin = layer.potential
    watch = Watch(layer)
    expected = [id(p) for p in layer.parameters() if p.requires_grad]
    assert [id(p) for p in watch.trainable] == expected


@pytest.mark.parametrize(
    "change",
    [
        parametrize,
        lambda layer: layer.potential.linears[0].register_forward_hook(print),
        lambda layer: layer.potential.register_full_backward_hook(print),
        lambda layer: setattr(layer, "potential", Own()),
    ],
)
def test_what_may_run_other_code_is_not_replayable(layer, change):
    assert Watch(layer).replayable
    change(layer)
    assert not Watch(layer).replayable


class Own(nn.Module):
    def forward(self, x, y):
        return (x - y).square().sum(-1)
