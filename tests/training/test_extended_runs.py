"""Runs with more steps than at their start, and starts that fail."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from runs import Heard, assert_same_run, last_tensors, run
from toy import Toy, config

from equipool.training import ConfigMismatchError, Loss, StorageError, check_writable, read_record


def constant(**changed):
    return config(schedule="constant", **changed)


@pytest.mark.parametrize("steps", [7, 10, 13])
def test_an_extended_run_has_the_weights_of_the_long_one(tmp_path, steps):
    task = Toy(kind="noisy", broken_steps=(6, 12))
    whole = run(tmp_path, task, constant(), name="whole")
    folder = run(tmp_path, task, constant(steps=steps))
    assert read_record(folder / "record.json").steps == steps
    run(tmp_path, task, constant(), resume=True)
    kept = [name for name in last_tensors(whole) if not name.endswith("history")]
    for name in kept:
        assert torch.equal(last_tensors(whole)[name], last_tensors(folder)[name]), name
    first, second = read_record(whole / "record.json"), read_record(folder / "record.json")
    assert (second.steps, second.complete, second.pieces) == (20, True, 2)
    assert (second.skipped, second.spikes) == (first.skipped, first.spikes) == (2, 0)
    assert second.metrics == first.metrics
    assert json.loads((folder / "config.json").read_text())["training"]["steps"] == 20
    run(tmp_path, task, constant(), resume=True)  # and is then complete
    assert read_record(folder / "record.json") == second


def test_an_interrupted_run_can_be_extended_as_well(tmp_path):
    whole = run(tmp_path, training=constant(), name="whole")
    folder = run(tmp_path, training=constant(steps=10), stop_after=0)
    run(tmp_path, training=constant(), resume=True)
    assert_same_run(whole, folder)


def test_what_cannot_be_extended_says_why(tmp_path):
    run(tmp_path, training=config())
    with pytest.raises(ConfigMismatchError, match="cosine schedule depends on the number of steps"):
        run(tmp_path, training=config(steps=40), resume=True)
    run(tmp_path, training=constant(aux_start=0.5), name="late")
    with pytest.raises(ConfigMismatchError, match="auxiliary weight depends on the number"):
        run(tmp_path, training=constant(aux_start=0.5, steps=40), name="late", resume=True)
    run(tmp_path, training=constant(), name="constant")
    with pytest.raises(ConfigMismatchError, match="extended but not shortened"):
        run(tmp_path, training=constant(steps=10), name="constant", resume=True)
    with pytest.raises(ConfigMismatchError) as raised:
        run(tmp_path, Toy(seed=1), constant(steps=40), name="constant", resume=True)
    assert "seed" in str(raised.value)
    assert "steps" not in str(raised.value)


@dataclass(frozen=True)
class Failing(Toy):
    name: ClassVar[str] = "failing toy"
    where: str = "loss"

    def network(self):
        return self._maybe("network") or super().network()

    def batches(self, first_step, num_steps, device, shard):
        return self._maybe("batches") or super().batches(first_step, num_steps, device, shard)

    def loss(self, network, batch):
        if network.training:
            self._maybe("step")
        return self._maybe("loss") or super().loss(network, batch)

    def _maybe(self, where):
        if self.where == where:
            raise ArithmeticError(where)


@pytest.mark.parametrize("where", ["network", "batches", "loss", "step"])
def test_a_start_that_fails_leaves_nothing(tmp_path, where):
    with pytest.raises(ArithmeticError):
        run(tmp_path, Failing(where=where), name="runs/deep/run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ArithmeticError):
        run(tmp_path, Failing(where=where))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_refused_start_changes_nothing(tmp_path):
    folder = run(tmp_path)
    before = sorted(folder.rglob("*"))
    with pytest.raises(FileExistsError, match=r"already holds a run: resume it"):
        run(tmp_path)
    with pytest.raises(ConfigMismatchError):
        run(tmp_path, Toy(seed=1), resume=True)
    assert sorted(folder.rglob("*")) == before


def test_a_run_that_fails_later_is_kept(tmp_path):
    class LateError(RuntimeError):
        pass

    @dataclass(frozen=True)
    class FailsLate(Toy):
        name: ClassVar[str] = "late toy"

        def evaluate(self, network, device):
            raise LateError

    with pytest.raises(LateError):
        run(tmp_path, FailsLate())
    assert (tmp_path / "run" / "log.jsonl").exists()
    assert (tmp_path / "run" / "config.json").exists()


@dataclass(frozen=True)
class Hopeless(Toy):
    name: ClassVar[str] = "hopeless toy"

    def loss(self, network, batch):
        return Loss(super().loss(network, batch).value * torch.nan)


def test_a_run_of_nan_has_failed(tmp_path, monkeypatch):
    assert not read_record(run(tmp_path, name="good") / "record.json").failed
    assert read_record(run(tmp_path, Hopeless(), name="loss") / "record.json").failed
    monkeypatch.setattr(Toy, "evaluate", lambda *_: {"error": float("nan")})
    heard = Heard()
    record = read_record(run(tmp_path, name="metrics", progress=heard) / "record.json")
    assert record.failed
    assert record.warning == "no evaluation gave a finite error"
    assert f"WARNING: {record.warning}" in heard


def test_a_file_that_cannot_be_written_is_noticed_before(tmp_path):
    check_writable(tmp_path / "new" / "record.json")
    (tmp_path / "old.json").write_text("{}")
    check_writable(tmp_path / "old.json")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    with pytest.raises(StorageError, match="directory"):
        check_writable(tmp_path)
    with pytest.raises(StorageError, match="cannot write"):
        check_writable(tmp_path / "old.json" / "record.json")
    with pytest.raises(StorageError, match="cannot write"):
        check_writable("/proc/nothing/record.json")
