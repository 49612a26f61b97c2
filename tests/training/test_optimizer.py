"""Adam as the engine calls it, against Adam as it is."""

import pytest
import torch
from toy import Toy, config

from equipool.training.optimizer import Optimizer
from equipool.training.step import make_network

CPU = torch.device("cpu")


def make(kind="plain", dtype=torch.float32, **changed):
    network = make_network(Toy(kind=kind)).to(dtype)
    return network, Optimizer(network, config(weight_decay=0.1, **changed), CPU)


def fill_gradients(network, seed):
    torch.manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_divided(dtype):
    network, optimizer = make(dtype=dtype)
    other = make_network(Toy()).to(dtype)
    adam = torch.optim.AdamW(other.parameters(), weight_decay=0.1)
    for step, (rate, divisor) in enumerate([(0.01, 1.0), (0.02, 3.7), (0.03, None)]):
        fill_gradients(network, step)
        fill_gradients(other, step)
        for parameter in other.parameters():
            parameter.grad /= divisor or 1
        adam.param_groups[0]["lr"] = rate
        adam.step()
        divided = None if divisor is None else torch.tensor(divisor, dtype=dtype)
        optimizer.step(torch.tensor([rate]), torch.tensor(0.0), divided)
    for one, expected in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("divisor", [None, 2.0, torch.nan, torch.inf])
def test_a_skipped_step_changes_nothing(divisor):
    network, optimizer = make()
    state = {**network.state_dict(), **optimizer.tensors()}
    before = {name: value.clone() for name, value in state.items()}
    fill_gradients(network, 0)
    next(network.parameters()).grad.fill_(torch.nan)
    given = None if divisor is None else torch.tensor(divisor)
    optimizer.step(torch.tensor([0.1]), torch.tensor(1.0), given)
    for name, value in state.items():
        assert torch.equal(value, before[name]), name


def test_inner_optimisers_are_a_group_where_their_rate_is_another():
    network, one = make("pooled")
    _, two = make("pooled", solver_rate_factor=0.5)
    assert one.factors == [1.0]
    assert two.factors == [1.0, 0.5]
    inner = [two.names[p] for p in two.adam.param_groups[1]["params"]]
    assert inner == [name for name, _ in network.named_parameters() if "solver" in name]
    assert one.tensors().keys() == two.tensors().keys()


def test_each_group_has_its_own_rate():
    network, optimizer = make("pooled", solver_rate_factor=0.5)
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    fill_gradients(network, 0)
    optimizer.step(torch.tensor([0.0, 0.1]), torch.tensor(0.0), None)
    for name, value in network.named_parameters():
        assert torch.equal(value, before[name]) == ("solver" not in name), name
