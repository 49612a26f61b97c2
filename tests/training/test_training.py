"""The loop: what it computes, and which steps it skips."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from runs import Heard, run
from toy import Toy, config

import equipool
from equipool.training import Loss, Shard, evaluate, read_log, read_record
from equipool.training.optimizer import average_weight
from equipool.training.step import make_network
from finished_runs import last_tensors


def naive_training(task, training):
    """The same, as plainly as it can be written. Weights and their average."""
    network = make_network(task).double()
    adam = torch.optim.Adam(network.parameters())
    averages = [torch.zeros_like(p) for p in network.parameters()]
    for step in range(training.steps):
        first = step - step % training.chunk
        chunk = task.batches(first, training.chunk, torch.device("cpu"), Shard())
        batch = {name: values[step - first].double() for name, values in chunk.items()}
        with equipool.record(diagnostics=True) as solutions:
            loss = task.loss(network, batch).value
        adam.zero_grad()
        (loss + training.aux_weight_at(step) * solutions.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
        adam.param_groups[0]["lr"] = training.learning_rate * training.learning_rate_factor(step)
        adam.step()
        with torch.no_grad():
            for average, parameter in zip(averages, network.parameters(), strict=True):
                average.lerp_(parameter, average_weight(training.ema_decay, step + 1))
    return dict(network.named_parameters()), averages


@pytest.mark.parametrize(
    ("kind", "more"),
    [("plain", {}), ("pooled", {}), ("pooled", {"aux_initial": 1e-3})],
)
def test_it_trains_as_a_plain_loop_does(tmp_path, kind, more):
    task, training = Toy(kind=kind), config(aux_weight=0.1, precision="64-true", **more)
    found = last_tensors(run(tmp_path, task, training))
    weights, averages = naive_training(task, training)
    for (name, weight), average in zip(weights.items(), averages, strict=True):
        torch.testing.assert_close(found[f"model/{name}"], weight.detach(), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found[f"average/{name}"], average, rtol=1e-5, atol=1e-7)


def test_the_norm_of_gradients_is_clipped(tmp_path):
    # Adam does not see the size of gradients that are all shortened alike: so one is not
    clipped, free = (
        last_tensors(run(tmp_path, Toy(large_steps=(7,)), config(clip_norm=norm), name=str(norm)))
        for norm in (1.0, None)
    )
    name = "optimizer/exp_avg_sq/layers.2.bias"
    assert clipped[name].max() < 1.0 < free[name].max()


def test_a_step_with_nan_is_skipped_counted_and_reported(tmp_path):
    task, heard = Toy(kind="noisy", broken_steps=(6, 7)), Heard()
    folder = run(tmp_path, task, progress=heard)
    record = read_record(folder / "record.json")
    assert record.skipped == 2
    assert "skipped 2 steps before step 10" in heard
    events = [e for e in read_log(folder / "log.jsonl") if e.get("event") == "skip"]
    assert [(e["count"], e["steps"]) for e in events] == [(2, [6, 7])]
    found = last_tensors(folder)
    model = {name: v for name, v in found.items() if not name.endswith("history")}
    assert all(value.isfinite().all() for value in model.values())
    assert found["optimizer/step/head.weight"] == 18
    points = [e for e in read_log(folder / "log.jsonl") if "event" not in e]
    assert all(math.isfinite(point["loss"]) for point in points)


@dataclass(frozen=True)
class Infinite(Toy):
    """A loss that is not finite though its gradient is."""

    name: ClassVar[str] = "infinite toy"

    def loss(self, network, batch):
        return Loss(super().loss(network, batch).value + torch.inf)


def test_a_loss_that_is_not_finite_is_skipped_whatever_its_gradient(tmp_path):
    folder = run(tmp_path, Infinite())
    assert read_record(folder / "record.json").skipped == 20
    start = make_network(Infinite()).state_dict()
    assert torch.equal(last_tensors(folder)["model/layers.0.weight"], start["layers.0.weight"])
    points = [e for e in read_log(folder / "log.jsonl") if "event" not in e]
    assert {point["loss"] for point in points} == {None}


def test_a_step_that_explodes_is_skipped_and_a_spike(tmp_path):
    training = config(steps=210, log_every=70, guard_factor=20.0, chunk=10, checkpoint_every=100)
    folder = run(tmp_path, Toy(large_steps=(30, 180)), training)
    record = read_record(folder / "record.json")
    assert record.skipped == 1  # the first is before the average is trusted
    assert record.spikes == 1


def test_torchs_generator_is_as_it_was(tmp_path):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    run(tmp_path, Toy(kind="noisy"))
    assert torch.equal(torch.rand(3), expected)


def test_other_precisions_train(tmp_path):
    for precision in ("bf16-mixed", "bf16-true", "64-true"):
        folder = run(tmp_path, training=config(precision=precision), name=precision)
        record = read_record(folder / "record.json")
        assert math.isfinite(record.metrics["error"])
        assert evaluate(folder, "last", device="cpu") == record.metrics
    assert last_tensors(folder)["model/layers.0.weight"].dtype == torch.float64
