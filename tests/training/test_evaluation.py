"""What is measured of trained equilibrium layers, against what they report themselves."""

from types import SimpleNamespace

import pytest
import torch
from runs import run as train_toy
from torch import nn
from toy import Toy

import equipool
from equipool.training import evaluate, evaluate_over_steps, load_network
from equipool.training.evaluation import _at_steps


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("over"), Toy(kind="deep"))


def test_every_number_gives_the_metrics_of_a_layer_with_so_many_steps(run):
    found = evaluate_over_steps(run, (0, 2, 4, 50), "last", device="cpu")
    assert [row.num_steps for row in found] == [0, 2, 4, 50]
    assert found[2].metrics == evaluate(run, "last", device="cpu")  # trained with at most 4
    network, task = load_network(run, "last"), Toy(kind="deep")
    for row in found:
        network.pool.steps = row.num_steps
        with torch.no_grad(), equipool.record(diagnostics=True) as solutions:
            assert row.metrics == task.evaluate(network, torch.device("cpu"))
        residuals = solutions[0].residual.sort().values
        assert row.residual == residuals[10].item()
        assert row.residual_99 == residuals[19].item()
        assert row.converged == pytest.approx((residuals <= 1e-3).double().mean().item())


class Padded(nn.Module):
    """A network whose batches have empty sets, which have converged where they start."""

    def __init__(self):
        super().__init__()
        self.pool = equipool.EquilibriumAggregation(1, 2)

    def forward(self, x):
        return (self.pool(x, torch.zeros(len(x), dtype=torch.int64), dim_size=5),)


def test_empty_sets_do_not_count():
    torch.manual_seed(0)
    x, task = torch.ones(3, 1), SimpleNamespace(evaluate=lambda network, device: {"y": network(x)})
    with torch.no_grad():
        found = _at_steps(task, Padded(), 0, torch.device("cpu"))
    assert found.residual > 0
    assert found.converged == 0
