"""The loop: what it computes, logs and shows, and where it stops."""

import math

import pytest
import torch
from runs import run
from toy import Toy, config

import equipool
from equipool.training import RunFolder, Shard, evaluate, load_network, read_record
from equipool.training.step import make_network
from finished_runs import last_tensors, numbers


def naive_training(task, training):
    """The same, as plainly as it can be written; the weights."""
    network = make_network(task)
    adam = torch.optim.AdamW(network.parameters(), weight_decay=training.weight_decay)
    for step in range(training.steps):
        first = step - step % training.chunk
        chunk = task.batches(first, training.chunk, torch.device("cpu"), Shard())
        batch = {name: values[step - first] for name, values in chunk.items()}
        with equipool.record() as solutions:
            loss = task.loss(network, batch).value
        adam.zero_grad()
        (loss + training.aux_weight_at(step) * solutions.aux_loss).backward()
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
        adam.param_groups[0]["lr"] = training.learning_rate_at(step)
        adam.step()
    return dict(network.named_parameters())


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("plain", {"clip_norm": 0.1, "weight_decay": 0.1}),
        ("pooled", {"aux_weight": 0.1, "clip_norm": None}),
        ("pooled", {"aux_weight": 0.1, "aux_initial": 1e-3}),
    ],
)
def test_it_trains_as_a_plain_loop_does(tmp_path, kind, more):
    task, training = Toy(kind=kind, double=True), config(**more)
    found = last_tensors(run(tmp_path, task, training))
    for name, weight in naive_training(task, training).items():
        torch.testing.assert_close(found[f"model/{name}"], weight.detach(), rtol=1e-5, atol=1e-7)


def test_the_log_has_the_numbers_of_each_interval(tmp_path):
    folder = run(tmp_path, Toy(kind="pooled"), config(log_every=1), name="each")
    each = [entry for entry in numbers(folder) if "event" not in entry]
    entries = [entry for entry in numbers(run(tmp_path, Toy(kind="pooled"))) if "loss" in entry]
    assert [entry["step"] for entry in entries] == [5, 10, 15, 20]
    for entry in entries:
        steps = each[entry["step"] - 5 : entry["step"]]
        assert entry["learning_rate"] == steps[-1]["learning_rate"]
        assert entry["loss_max"] == max(one["loss"] for one in steps)
        for name in ("loss", "aux_loss", "gradient_norm"):
            assert entry[name] == pytest.approx(sum(one[name] for one in steps) / 5)
        deviations = [one["metrics"]["deviation"] for one in steps]
        assert entry["metrics"] == {"deviation": pytest.approx(sum(deviations) / 5)}


@pytest.mark.parametrize("broken_step", [6, 19])
def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(tmp_path, broken_step):
    task = Toy(broken_step=broken_step)
    for resume in (False, True):
        with pytest.raises(FloatingPointError, match=f"step {broken_step}: the loss is nan"):
            run(tmp_path, task, resume=resume)
    assert RunFolder(tmp_path / "run").newest().step == broken_step // 6 * 6
    assert all(p.isfinite().all() for p in load_network(tmp_path / "run", "last").parameters())


def test_a_run_whose_evaluations_are_not_finite_has_failed(tmp_path, monkeypatch):
    assert not read_record(run(tmp_path, name="good") / "record.json").failed
    monkeypatch.setattr(Toy, "evaluate", lambda *_: {"error": math.nan})
    folder = run(tmp_path)
    assert read_record(folder / "record.json").failed
    with pytest.warns(UserWarning, match="no evaluation gave a number"):
        load_network(folder)


def test_torchs_generator_is_as_it_was(tmp_path):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    run(tmp_path, Toy(kind="noisy"))
    assert torch.equal(torch.rand(3), expected)


def test_bfloat16_trains_and_is_evaluated_as_it_was_trained(tmp_path):
    plain = run(tmp_path, Toy(kind="pooled"), name="plain")
    folder = run(tmp_path, Toy(kind="pooled"), config(precision="bf16-mixed"))
    record = read_record(folder / "record.json")
    assert evaluate(folder, "last", device="cpu") == record.metrics
    expected = read_record(plain / "record.json").metrics
    assert record.metrics != expected
    assert record.metrics["error"] == pytest.approx(expected["error"], rel=0.2)
    assert last_tensors(folder)["model/head.weight"].dtype == torch.float32


def test_the_progress_is_shown_unless_it_is_switched_off(tmp_path, capsys):
    run(tmp_path, name="quiet")
    assert not capsys.readouterr().out
    run(tmp_path, name="shown", progress=True)
    shown = capsys.readouterr().out
    assert all(f"{step}/20," in shown for step in (5, 10, 15, 20))
    assert "evaluated error" in shown
