"""The loop: what it computes, what it leaves behind, what it refuses."""

import json
import math
import os
import signal
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from runs import Heard, assert_same_tensors, last_tensors, numbers
from toy import Toy, config

import equipool
from equipool import environment
from equipool.training import (
    BrokenCheckpointError,
    ConfigMismatchError,
    Loss,
    Shard,
    StorageError,
    evaluate,
    load_network,
    read_log,
    read_record,
    train,
    train_together,
)
from equipool.training.average import average_weight
from equipool.training.devices import resolve_device
from equipool.training.log import Log
from equipool.training.step import make_network


def run(tmp_path, task=None, training=None, name="run", **more):
    """Train quietly; the directory."""
    more = {"device": "cpu", "progress": Heard()} | more
    train(task or Toy(), training or config(), tmp_path / name, **more)
    return tmp_path / name


def naive_training(task, training):
    """The same, as plainly as it can be written. Weights and their average."""
    network = make_network(task).double()
    adam = torch.optim.Adam(network.parameters(), eps=training.epsilon)
    schedule = training.learning_rate_schedule()
    averages = [torch.zeros_like(p) for p in network.parameters()]
    for step in range(training.steps):
        first = step - step % training.chunk
        chunk = task.batches(first, training.chunk, torch.device("cpu"), Shard())
        batch = {name: values[step - first].double() for name, values in chunk.items()}
        with equipool.record() as solutions:
            loss = task.loss(network, batch).value
        adam.zero_grad()
        (loss + training.aux_weight * solutions.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
        adam.param_groups[0]["lr"] = training.learning_rate * schedule(step)
        adam.step()
        with torch.no_grad():
            for average, parameter in zip(averages, network.parameters(), strict=True):
                average.lerp_(parameter, average_weight(training.ema_decay, step + 1))
    return dict(network.named_parameters()), averages


@pytest.mark.parametrize("kind", ["plain", "pooled"])
def test_it_trains_as_a_plain_loop_does(tmp_path, kind):
    task, training = Toy(kind=kind), config(aux_weight=0.1, precision="64-true")
    found = last_tensors(run(tmp_path, task, training))
    weights, averages = naive_training(task, training)
    for (name, weight), average in zip(weights.items(), averages, strict=True):
        torch.testing.assert_close(found[f"model/{name}"], weight.detach(), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found[f"average/{name}"], average, rtol=1e-5, atol=1e-7)


def test_weight_decay_and_rates_of_inner_optimisers_have_an_effect(tmp_path):
    task = Toy(kind="pooled")
    plain = last_tensors(run(tmp_path, task, name="plain"))
    decayed = last_tensors(run(tmp_path, task, config(weight_decay=1.0), name="decayed"))
    slow = last_tensors(run(tmp_path, task, config(solver_rate_factor=0.0), name="slow"))
    head, inner = "model/head.weight", "model/pool.solver.raw_momentum.raw"
    assert decayed[head].norm() < plain[head].norm()
    assert slow[inner] == 0 != plain[inner]
    assert not torch.equal(slow[head], make_network(task).head.weight)


def test_the_auxiliary_loss_has_an_effect(tmp_path):
    found = [
        last_tensors(run(tmp_path, Toy(kind="pooled"), config(aux_weight=weight), name=str(weight)))
        for weight in (0.0, 1.0)
    ]
    assert not torch.equal(found[0]["model/head.weight"], found[1]["model/head.weight"])


def test_the_norm_of_gradients_is_clipped(tmp_path):
    # Adam does not see the size of gradients that are all shortened alike: so one is not
    clipped, free = (
        last_tensors(run(tmp_path, Toy(large_steps=(7,)), config(clip_norm=norm), name=str(norm)))
        for norm in (1.0, None)
    )
    name = "optimizer/exp_avg_sq/layers.2.bias"
    assert clipped[name].max() < 1.0 < free[name].max()


@pytest.mark.parametrize("kind", ["plain", "noisy"])
def test_a_run_in_pieces_is_the_run_without(tmp_path, kind):
    """Stopped after every step in turn: within chunks, between points of the log."""
    task = Toy(kind=kind, broken_steps=(7,))
    whole = run(tmp_path, task, name="whole")
    for _ in range(25):
        record = train(
            task,
            config(),
            tmp_path / "pieces",
            resume=True,
            device="cpu",
            stop_after=0,
            progress=Heard(),
        )
        if record.complete:
            break
    assert record.complete
    assert record.pieces > 15
    assert_same_tensors(whole, tmp_path / "pieces")
    assert numbers(whole) == numbers(tmp_path / "pieces")
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


def test_a_step_with_nan_is_skipped_counted_and_reported(tmp_path):
    task, heard = Toy(kind="noisy", broken_steps=(6, 7)), Heard()
    folder = run(tmp_path, task, progress=heard)
    record = read_record(folder / "record.json")
    assert record.skipped == 2
    assert "2 steps before step 10 were skipped" in heard
    events = [e for e in read_log(folder / "log.jsonl") if e.get("event") == "skip"]
    assert [(e["count"], e["steps"]) for e in events] == [(2, [6, 7])]
    found = last_tensors(folder)
    model = {name: v for name, v in found.items() if not name.endswith("history")}
    assert all(value.isfinite().all() for value in model.values())
    assert found["optimizer/step/head.weight"] == 18
    points = [e for e in read_log(folder / "log.jsonl") if "event" not in e]
    assert all(math.isfinite(point["loss"]) for point in points)


def test_a_run_that_skipped_more_than_half_of_its_steps_says_so(tmp_path):
    for broken, warned in ((10, False), (11, True)):
        heard = Heard()
        folder = run(
            tmp_path, Toy(broken_steps=tuple(range(broken))), name=str(broken), progress=heard
        )
        record = read_record(folder / "record.json")
        said = f"{broken} of 20 steps were skipped, more than half"
        assert (f"WARNING: {said}" in heard) is warned
        assert (said in (record.warning or "")) is warned
        finish = read_log(folder / "log.jsonl")[-1]
        assert (finish["event"], finish.get("warning")) == ("finish", record.warning)


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
    monkeypatch.setattr("equipool.training.tensorboard.find_spec", lambda name: None)
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


def test_one_process_at_a_time_trains_in_a_directory(tmp_path):
    @dataclass(frozen=True)
    class Twice(Toy):
        name: ClassVar[str] = "toy that is trained twice"

        def evaluate(self, network, device):
            message = f"another process is training in {tmp_path / 'run'}"
            with pytest.raises(BlockingIOError, match=message):
                run(tmp_path, Toy(), resume=True)
            return super().evaluate(network, device)

    run(tmp_path, Twice())
    run(tmp_path, Twice(), resume=True)  # and let go of


def test_the_lock_is_let_go_of_where_a_run_fails(tmp_path):
    with pytest.raises(ValueError, match="expected 'accuracy'"):
        run(tmp_path, Odd())
    with pytest.raises(ValueError, match="expected 'accuracy'"):
        run(tmp_path, Odd(), resume=True)


def test_a_start_that_fails_does_not_claim_the_directory(tmp_path):
    with pytest.raises(ValueError, match="expected a scalar"):
        run(tmp_path, Odd(wrong="shape"))
    assert read_record(run(tmp_path) / "record.json").task == "toy"


@pytest.mark.parametrize("kept", ["checkpoints", "log.jsonl", "record.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_left_of_a_run_without_its_config_is_not_taken_over(tmp_path, kept, resume):
    folder = run(tmp_path)
    for path in list(folder.iterdir()):
        if path.name != kept:
            path.rename(tmp_path / path.name)
    with pytest.raises(FileExistsError, match=f"has {kept} but no config.json"):
        run(tmp_path, Toy(seed=1), resume=resume)
    assert not (folder / "config.json").exists()


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_again(tmp_path):
    folder = run(tmp_path, stop_after=0)
    log = (folder / "log.jsonl").read_bytes()
    for state in folder.glob("checkpoints/*/state.json"):
        state.write_bytes(b"")
    heard = Heard()
    with pytest.raises(BrokenCheckpointError, match="no other checkpoint that is whole"):
        run(tmp_path, resume=True, progress=heard)
    assert "The checkpoint before it is used" not in heard
    assert (folder / "log.jsonl").read_bytes() == log


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


def test_another_config_is_refused_and_the_difference_shown(tmp_path):
    folder = run(tmp_path)
    with pytest.raises(ConfigMismatchError) as raised:
        run(tmp_path, Toy(seed=5), config(steps=40, keep_last=7), resume=True)
    lines = str(raised.value).splitlines()
    assert str(folder) in lines[0]
    assert [line.strip() for line in lines[1:]] == [
        "task.seed: 0 in the run, 5 here",
        "training.steps: 20 in the run, 40 here",
    ]


def test_a_field_newer_than_the_run_counts_as_its_default(tmp_path):
    folder = run(tmp_path, training=config(steps=10, beta2=0.9))
    saved = json.loads((folder / "config.json").read_text())
    del saved["fields"]["seed"], saved["training"]["weight_decay"]
    (folder / "config.json").write_text(json.dumps(saved))
    run(tmp_path, training=config(steps=10, beta2=0.9), resume=True)
    with pytest.raises(ConfigMismatchError) as raised:
        run(tmp_path, Toy(seed=5), config(steps=10, beta2=0.9, weight_decay=0.1), resume=True)
    assert [line.strip() for line in str(raised.value).splitlines()[1:]] == [
        "task.seed: 0 in the run, 5 here",
        "training.weight_decay: 0.0 in the run, 0.1 here",
    ]


def test_a_directory_with_a_run_is_not_overwritten(tmp_path):
    run(tmp_path)
    with pytest.raises(FileExistsError, match=r"holds a run already: resume it"):
        run(tmp_path)


def test_the_seed_decides(tmp_path):
    same = [last_tensors(run(tmp_path, Toy(kind="noisy"), name=name)) for name in ("a", "b")]
    other = last_tensors(run(tmp_path, Toy(kind="noisy", seed=1), name="c"))
    assert torch.equal(same[0]["model/head.weight"], same[1]["model/head.weight"])
    assert not torch.equal(same[0]["model/head.weight"], other["model/head.weight"])


def test_torchs_generator_is_as_it_was(tmp_path):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    run(tmp_path, Toy(kind="noisy"))
    assert torch.equal(torch.rand(3), expected)


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
    assert "Stopping after this step. Once more to stop at once" in heard
    assert "at step 9 of 20, which is saved. To go on: toy --resume" in heard
    assert int(last_tensors(folder)["optimizer/step/layers.0.weight"]) == 9
    assert not (folder / "record.json").exists()
    run(tmp_path, Interrupted(), name="run", resume=True)
    assert_same_tensors(folder, run(tmp_path, name="whole"))


def test_a_full_disk_ends_the_run_with_the_files_name(tmp_path, monkeypatch):
    def fail(self):
        raise StorageError(28, "could not write log.jsonl: No space left on device", "log.jsonl")

    monkeypatch.setattr(Log, "sync", fail)
    with pytest.raises(StorageError, match=r"log\.jsonl"):
        run(tmp_path)


def test_other_precisions_train(tmp_path):
    for precision in ("bf16-mixed", "bf16-true", "64-true"):
        folder = run(tmp_path, training=config(precision=precision), name=precision)
        record = read_record(folder / "record.json")
        assert math.isfinite(record.metrics["error"])
        assert evaluate(folder, "last", device="cpu") == record.metrics
    assert last_tensors(folder)["model/layers.0.weight"].dtype == torch.float64


def test_what_cannot_be_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"capture is True, expected None or False"):
        run(tmp_path, training=config(capture=True), name="capture")
    with pytest.raises(ValueError, match=r"device is 'meta', expected"):
        resolve_device("meta")
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_network(tmp_path / "nowhere")


@dataclass(frozen=True)
class Odd(Toy):
    name: ClassVar[str] = "odd toy"
    monitor: ClassVar[str] = "accuracy"
    wrong: str = "monitor"

    def batches(self, first_step, num_steps, device, shard):
        extra = int(self.wrong == "chunk")
        return super().batches(first_step, num_steps + extra, device, shard)

    def loss(self, network, batch):
        found = super().loss(network, batch)
        if self.wrong == "shape":
            return Loss(found.value[None])
        return Loss(found.value, {"loss": found.value} if self.wrong == "clash" else {})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("monitor", r"Odd.evaluate gave \['error'\], expected 'accuracy'"),
        ("chunk", r"Odd.batches gave 'x' of shape \(5, 4, 3, 1\), expected 4 first"),
        ("shape", r"the loss's 'value' has shape \(1,\), expected a scalar"),
        ("clash", "a metric is called 'loss'"),
    ],
)
def test_a_task_that_breaks_its_promise_is_told(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, Odd(wrong=wrong))


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


@pytest.mark.compile
def test_a_compiled_step_trains_the_same(tmp_path):
    """But for rounding; and a run may be gone on with either way."""
    training = config(precision="64-true", aux_weight=0.0)
    found = last_tensors(run(tmp_path, Toy(), training))
    compiled = replace(training, compile=True)
    folder = run(tmp_path, Toy(), compiled, name="other", stop_after=1e-9)
    steps = len(read_log(folder / "log.jsonl"))
    run(tmp_path, Toy(), compiled, name="other", resume=True)
    assert steps < len(read_log(folder / "log.jsonl"))
    for name, value in last_tensors(folder).items():
        torch.testing.assert_close(value, found[name], rtol=1e-9, atol=1e-9, equal_nan=True)


@dataclass(frozen=True)
class Fed(Toy):
    """A toy with data, which may change."""

    name: ClassVar[str] = "fed toy"
    rows: ClassVar[int] = 3

    def facts(self):
        return {"rows": self.rows}


def test_a_run_whose_data_has_changed_is_neither_gone_on_with_nor_evaluated(tmp_path, monkeypatch):
    folder = run(tmp_path, Fed())
    before = evaluate(folder, device="cpu")
    run(tmp_path, Fed(), resume=True)
    monkeypatch.setattr(Fed, "rows", 4)
    changed = "data.rows: 3 in the run, 4 here"
    with pytest.raises(ConfigMismatchError, match=changed):
        run(tmp_path, Fed(), resume=True)
    with pytest.raises(ConfigMismatchError, match=f"not what .* was trained on:\n  {changed}"):
        evaluate(folder, device="cpu")
    with pytest.raises(ConfigMismatchError, match=changed):
        load_network(folder)
    monkeypatch.setattr(Fed, "rows", 3)
    assert evaluate(folder, device="cpu") == before


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
