"""Training without files gives what `train` gives."""

import signal
from dataclasses import replace

import pytest
import torch
from runs import Heard, run
from toy import Toy, config

from equipool.training import Task, TrainingConfig, count_spikes, fit, read_record
from finished_runs import last_tensors


@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_the_weights_are_those_of_train(tmp_path, monkeypatch, ema_decay):
    task, training = Toy(kind="noisy"), config(ema_decay=ema_decay)
    folder = run(tmp_path, task, training)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    fitted = fit(task, training, "cpu")
    assert sorted(tmp_path.rglob("*")) == before
    assert not fitted.network.training
    part = "model" if ema_decay is None else "average"
    expected = last_tensors(folder)
    for name, value in fitted.network.named_parameters():
        assert torch.equal(value, expected[f"{part}/{name}"]), name
    record = read_record(folder / "record.json")
    assert fitted.record.metrics == record.metrics
    assert fitted.record.complete
    assert task.evaluate(fitted.network, torch.device("cpu")) == record.metrics


def test_the_history_has_a_number_per_step():
    task = Toy(broken_steps=(3,))
    fitted = fit(task, config(log_every=7), "cpu")
    history = fitted.history
    assert history.keys() == {"loss", "aux_loss", "gradient_norm", "skipped", "deviation"}
    assert {len(values) for values in history.values()} == {20}
    assert history["skipped"].nonzero().flatten().tolist() == [3]
    other = fit(task, config(log_every=20), "cpu").history["loss"]
    torch.testing.assert_close(history["loss"], other, rtol=0, atol=0, equal_nan=True)
    assert fitted.record.spikes == count_spikes(history["loss"])


def test_stopped_early_it_has_the_steps_it_took():
    fitted = fit(Toy(), config(log_every=7), "cpu", stop_after=0)
    assert not fitted.record.complete
    assert len(fitted.history["loss"]) == fitted.record.steps == 1


def test_ctrl_c_interrupts_it():
    """It cannot be resumed, so there is nothing to save."""

    class Interrupted(Undecorated):
        def batches(self, *given):
            signal.raise_signal(signal.SIGINT)

    # A shell's background job, and so the tests in it, ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            fit(Interrupted(), config(), "cpu")
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_is_silent_unless_told(capsys):
    fit(Toy(), config(), "cpu")
    assert capsys.readouterr().out == ""
    heard = Heard()
    fit(Toy(), config(), "cpu", progress=heard)
    assert "begin 0 20" in heard


class Undecorated(Task):
    """A task that is not a dataclass."""

    name, monitor, batch_size, seed = "undecorated", "error", 4, 0
    network, batches = lambda self: Toy().network(), lambda self, *given: Toy().batches(*given)

    def loss(self, network, batch):
        return replace(Toy().loss(network, batch), metrics={})

    def evaluate(self, network, device):
        return {"error": 0.5}


def test_any_task_will_do():
    fitted = fit(Undecorated(), TrainingConfig(steps=5), "cpu")
    assert fitted.record.metrics == {"error": 0.5}
    assert len(fitted.history["loss"]) == 5


def test_float64_is_float64_from_end_to_end():
    dtypes = set()

    class Wide(Undecorated):
        def loss(self, network, batch):
            dtypes.add(network(batch["x"].double()).dtype)
            return super().loss(network, {"x": batch["x"].double()})

    fit(Wide(), config(steps=2, precision="64-true"), "cpu")
    assert dtypes == {torch.float64}
