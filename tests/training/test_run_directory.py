"""What a run leaves in its directory, and how it is gone on with."""

import json
import math
import os
import signal
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from runs import Heard, assert_same_run, assert_same_tensors, last_tensors, numbers, run
from toy import Toy, config

from equipool import environment
from equipool.training import evaluate, load_network, read_log, read_record, train, train_together


@pytest.mark.parametrize("kind", ["plain", "noisy"])
def test_a_run_in_pieces_is_the_run_without(tmp_path, kind):
    """Stopped after every step in turn: within chunks, between points of the log."""
    task = Toy(kind=kind, broken_steps=(7,))
    whole = run(tmp_path, task, name="whole")
    for _ in range(25):
        pieces = run(tmp_path, task, name="pieces", resume=True, stop_after=0)
        if (pieces / "record.json").exists():
            break
    record = read_record(pieces / "record.json")
    assert record.complete
    assert record.pieces > 15
    assert_same_run(whole, tmp_path / "pieces")
    first, second = read_record(whole / "record.json"), record
    for field in ("metrics", "spikes", "skipped", "steps"):
        assert getattr(first, field) == getattr(second, field), field
    assert [point["metrics"] for point in first.curve] == [p["metrics"] for p in second.curve]


def test_pieces_by_interval_of_time(tmp_path):
    training = config(checkpoint_every=None, checkpoint_seconds=1e-9, evaluate_every=1000)
    folder = run(tmp_path, training=training)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-00000016",
        "step-00000020",
    ]


def test_steps_that_are_lost_are_dropped_from_the_log(tmp_path):
    folder = run(tmp_path, name="whole")
    (folder / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"")
    (folder / "record.json").unlink()
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"step": 20, "lo')
    heard = Heard()
    before = numbers(folder)
    run(tmp_path, name="whole", resume=True, progress=heard)
    assert "is damaged: its checksum does not match" in heard
    assert "begin 18 20" in heard
    assert numbers(folder) == before
    lines = (folder / "log.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    points = [json.loads(line)["step"] for line in lines if '"event"' not in line]
    assert points == [5, 10, 15, 20]


def test_what_is_in_the_log(tmp_path):
    folder = run(tmp_path, Toy(kind="pooled"))
    entries = read_log(folder / "log.jsonl")
    assert [e.get("event") for e in entries] == [
        "start", None, "evaluation", None, None, "evaluation", None, "evaluation", "finish"
    ]  # fmt: skip
    point = entries[1]
    assert {"step", "seconds", "loss", "aux_loss", "gradient_norm", "metrics"} <= point.keys()
    assert {"learning_rate", "steps_per_second", "inner", "skipped", "spikes"} <= point.keys()
    assert point["metrics"].keys() == {"deviation"}
    assert point["inner"]["pool"].keys() >= {"residual", "converged", "momentum", "learning_rate"}
    assert all(e["aux_loss"] > 0 for e in entries if "event" not in e)
    seconds = [e["seconds"] for e in entries if "seconds" in e]
    assert seconds == sorted(seconds)
    assert list((folder / "tensorboard").iterdir())


def test_without_tensorboard_it_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr("equipool.training.progress.find_spec", lambda name: None)
    heard = Heard()
    folder = run(tmp_path, progress=heard)
    assert sum("TensorBoard is not installed" in text for text in heard.texts) == 1
    assert not (folder / "tensorboard").exists()


def test_the_record(tmp_path):
    folder = run(tmp_path)
    record = read_record(folder / "record.json")
    assert record.complete
    assert (record.task, record.seed, record.steps, record.together) == ("toy", 0, 20, 1)
    assert [point["step"] for point in record.curve] == [8, 16, 20]
    assert record.metrics == record.curve[-1]["metrics"]
    values = [point["metrics"]["error"] for point in record.curve]
    assert record.best == record.curve[values.index(min(values))]
    assert 0 < record.training_seconds < record.seconds
    assert record.num_parameters == 13
    assert record.config["training"]["steps"] == 20
    assert record.versions["torch"] == str(torch.__version__)
    assert record.hardware["device"] == "cpu"


def test_the_record_tells_what_each_piece_ran_on(tmp_path, monkeypatch):
    folder = run(tmp_path, stop_after=0)
    real = environment.hardware
    monkeypatch.setattr("equipool.training.run.hardware", lambda d: real(d) | {"cpu": "abacus"})
    monkeypatch.setattr("equipool.training.run.versions", lambda: {"torch": "3.0"})
    plans = [(Toy(), config(), folder), (Toy(seed=1), config(), tmp_path / "other")]
    record = train_together(plans, resume=True, device="cpu", progress=Heard())[0]
    assert record == read_record(folder / "record.json")
    assert record.pieces == 2
    first, second = record.ran_on
    assert (first["steps"], first["together"]) == (1, 1)
    assert (second["steps"], second["together"]) == (19, 2)
    assert first["hardware"]["cpu"] != second["hardware"]["cpu"] == "abacus"
    assert second["versions"] == {"torch": "3.0"} != first["versions"]
    assert (record.hardware, record.together) == (second["hardware"], 2)
    starts = [e for e in read_log(folder / "log.jsonl") if e.get("event") in ("start", "resume")]
    assert [start["together"] for start in starts] == [1, 2]


def test_a_finished_run_is_left_as_it_is(tmp_path):
    folder = run(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = train(Toy(), config(), folder, resume=True, device="cpu", progress=Heard())
    assert again == read_record(folder / "record.json")
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_record_that_was_not_written_any_more_is(tmp_path):
    folder = run(tmp_path)
    before = read_record(folder / "record.json")
    (folder / "record.json").unlink()
    run(tmp_path, resume=True)
    assert replace(read_record(folder / "record.json"), date=before.date) == before


def test_evaluation_uses_the_average_and_the_network_can_be_loaded(tmp_path):
    folder = run(tmp_path, Toy(kind="noisy"))
    record = read_record(folder / "record.json")
    assert evaluate(folder, "last", device="cpu") == record.metrics
    assert evaluate(folder, device="cpu") == record.best["metrics"]
    network = load_network(folder, "last")
    assert not network.training
    assert Toy().evaluate(network, torch.device("cpu")) == record.metrics
    assert torch.equal(network.head.weight, last_tensors(folder)["average/head.weight"])
    assert not torch.equal(network.head.weight, last_tensors(folder)["model/head.weight"])


def test_without_an_average_the_weights_themselves_are_loaded(tmp_path):
    folder = run(tmp_path, training=config(ema_decay=None))
    weight = load_network(folder, "last").layers[0].weight
    assert torch.equal(weight, last_tensors(folder)["model/layers.0.weight"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, number):
    signals_left = [number]

    @dataclass(frozen=True)
    class Interrupted(Toy):
        name: ClassVar[str] = "interrupted toy"

        def batches(self, first_step, num_steps, device, shard):
            if first_step == 8 and signals_left:
                signals_left.clear()
                os.kill(os.getpid(), number)
            return super().batches(first_step, num_steps, device, shard)

    heard, handler = Heard(), signal.getsignal(number)
    folder = run(tmp_path, Interrupted(), progress=heard, how_to_resume="toy --resume")
    assert signal.getsignal(number) == handler
    assert "Stopping after this step. Press again to stop at once" in heard
    assert "at step 9 of 20 and saved. To resume: toy --resume" in heard
    assert int(last_tensors(folder)["optimizer/step/layers.0.weight"]) == 9
    assert not (folder / "record.json").exists()
    run(tmp_path, Interrupted(), name="run", resume=True)
    assert_same_tensors(folder, run(tmp_path, name="whole"))


@pytest.mark.parametrize(("lower", "best"), [(True, 8), (False, 12)])
def test_the_best_is_the_best_by_the_monitor(tmp_path, lower, best):
    scores = iter([0.5, 0.1, 0.9, math.nan, 0.4])

    @dataclass(frozen=True)
    class Scored(Toy):
        name: ClassVar[str] = "scored toy"
        lower_is_better: ClassVar[bool] = lower

        def evaluate(self, network, device):
            return {"error": next(scores)}

    folder = run(tmp_path, Scored(), config(evaluate_every=4))
    record = read_record(folder / "record.json")
    assert record.best["step"] == best
    assert [point["metrics"]["error"] for point in record.curve] == [0.5, 0.1, 0.9, None, 0.4]
    assert json.loads((folder / "best.json").read_text())["step"] == best
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}" for step in (best, 18, 20)]


def test_where_nothing_was_best_it_is_said(tmp_path, monkeypatch, capsys):
    folder = run(tmp_path)
    load_network(folder)
    assert "no best" not in capsys.readouterr().out
    monkeypatch.setattr(Toy, "evaluate", lambda self, network, device: {"error": math.nan})
    folder = run(tmp_path, name="without")
    load_network(folder, "last")
    assert "no best" not in capsys.readouterr().out
    load_network(folder)
    assert "has no best checkpoint" in capsys.readouterr().out
