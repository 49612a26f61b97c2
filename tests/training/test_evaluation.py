"""What is measured of trained equilibrium layers, against what they report themselves."""

from types import SimpleNamespace

import pytest
import torch
from runs import run as train_toy
from torch import nn
from toy import Toy, config

import equipool
from equipool.training import evaluate, evaluate_over_steps, load_network
from equipool.training.evaluation import _Calls, _with_steps


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
        assert row.spread is None


def test_the_spread_is_that_of_predictions_from_random_starts(run):
    at_start, later = evaluate_over_steps(run, (0, 400), num_starts=3, device="cpu")
    assert at_start.spread > 0
    # the regulariser alone makes the starts matter less
    assert later.spread < at_start.spread
    again, _ = evaluate_over_steps(run, (0, 400), num_starts=3, device="cpu")
    assert again.spread == at_start.spread
    network, drawn = load_network(run), []
    for seed in range(3):
        torch.manual_seed(seed)
        drawn.append(network.head(torch.randn(20, 2)).detach().double())
    deviation = torch.stack(drawn) - torch.stack(drawn).mean(0)
    assert at_start.spread == pytest.approx(deviation.square().mean().sqrt().item(), rel=1e-5)


X = torch.ones(3, 1)


class Padded(nn.Module):
    """A network whose batches have empty sets, which stay at their starts."""

    def __init__(self):
        super().__init__()
        self.pool = equipool.EquilibriumAggregation(1, 2)

    def forward(self, x):
        return (self.pool(x, torch.zeros(len(x), dtype=torch.int64), dim_size=5),)


def test_empty_sets_do_not_count():
    task, calls = SimpleNamespace(evaluate=lambda network, device: {"y": network(X)}), _Calls()
    with torch.no_grad():
        calls.evaluate(task, _with_steps(Padded(), 3, random_start=True), torch.device("cpu"))
    for rows in (calls.residuals, calls.converged, calls.predictions):
        assert [len(row) for row in rows] == [1]


def test_networks_without_equilibrium_layers(tmp_path):
    train_toy(tmp_path, training=config(steps=1))
    with pytest.raises(ValueError, match="has no equilibrium layer"):
        evaluate_over_steps(tmp_path / "run", (1,), "last", device="cpu")
