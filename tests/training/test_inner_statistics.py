"""What is said of the equilibrium layers, against what they say themselves."""

import pytest
import torch
from torch import nn
from toy import Toy

import equipool
from equipool import EquilibriumAggregation, Fixed, GradientDescent, NoRegularizer
from equipool.training.step import inner_statistics


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = EquilibriumAggregation(3, 4, steps=Fixed(3, tolerance=1e9))
        self.second = EquilibriumAggregation(
            3, 4, num_steps=3, regularizer=NoRegularizer(), solver=GradientDescent(0.2, 0.5)
        )
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, index):
        # against the order of the names, and one of them twice
        y = self.second(x, index) + self.first(x, index)
        return self.norm(y + self.first(2 * x, index))


def test_several_layers_are_told_apart_by_name():
    torch.manual_seed(0)
    network, x, index = Two(), torch.randn(7, 3), torch.tensor([0, 0, 1, 1, 1, 2, 2])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = inner_statistics(network, lambda: network(x, index))

    assert network.norm.training
    assert all(torch.equal(v, before[name]) for name, v in network.state_dict().items())
    assert found.keys() == {"first", "second"}
    one, two = network.first.solve(x, index), network.first.solve(2 * x, index)
    both = torch.cat([one.residual, two.residual])
    assert found["first"]["residual"] == pytest.approx(both.mean().item(), rel=1e-4)
    assert found["first"]["residual_max"] == pytest.approx(both.max().item(), rel=1e-4)
    assert found["first"]["converged"] == 1
    aux = (one.aux_loss + two.aux_loss) / 2
    assert found["first"]["aux_loss"] == pytest.approx(aux.item(), rel=1e-4)
    assert found["first"]["learning_rate"] == pytest.approx(0.125)
    assert found["first"]["regularizer_weight"] == pytest.approx(0.1)

    other = network.second.solve(x, index)
    assert found["second"]["residual"] == pytest.approx(other.residual.mean().item(), rel=1e-4)
    assert found["second"]["converged"] == other.converged.float().mean().item() == 0
    assert found["second"]["momentum"] == pytest.approx(0.5)
    assert "regularizer_weight" not in found["second"]


def test_sets_without_elements_do_not_count():
    """As those that fill up a batch."""
    torch.manual_seed(0)
    layer = EquilibriumAggregation(3, 4, num_steps=3)
    x, index = torch.randn(5, 3), torch.tensor([0, 0, 2, 2, 2])
    empty = torch.zeros(0, dtype=torch.long)

    def forward():
        layer(x, index, dim_size=9)
        layer(x[:0], empty, dim_size=2)

    padded = inner_statistics(layer, forward)["layer"]
    alone = inner_statistics(layer, lambda: layer(x, index // 2))["layer"]
    assert alone["converged"] == 0 < alone["residual"]
    assert padded == pytest.approx(alone, rel=1e-4)


def test_without_any_element_the_learned_scalars_are_left():
    layer = EquilibriumAggregation(3, 4)
    empty = torch.zeros(0, dtype=torch.long)
    found = inner_statistics(layer, lambda: layer(torch.zeros(0, 3), empty, dim_size=2))
    assert found["layer"].keys() == {"learning_rate", "momentum", "regularizer_weight"}


def test_nothing_is_left_on_the_layers():
    network = Toy(kind="pooled").network()
    inner_statistics(network, lambda: network(torch.randn(2, 3, 1)))
    assert not network.pool._forward_hooks
    with equipool.record() as solutions:
        network(torch.randn(2, 3, 1))
    assert len(solutions) == 1


def test_a_network_without_such_a_layer_is_not_run():
    network = Toy(kind="plain").network()
    assert inner_statistics(network, lambda: pytest.fail("it was run")) == {}
