"""A resumed run is the run that was never interrupted; damage is noticed."""

import json
import os
import shutil
import signal
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from runs import run
from toy import Fed, Toy, config

from equipool import environment
from equipool.files import FileError
from equipool.training import (
    ConfigMismatchError,
    RunFolder,
    evaluate,
    load_network,
    read_log,
    read_record,
)
from finished_runs import assert_same_run, assert_same_tensors, last_tensors


def last_checkpoint(folder):
    return RunFolder(folder).checkpoint(RunFolder(folder).steps()[-1])


@pytest.mark.parametrize("kind", ["noisy", "scattered"])
def test_a_run_in_pieces_is_the_run_without(tmp_path, kind):
    """Stopped after every step in turn: within chunks, between points of the log."""
    task = Toy(kind=kind)
    whole = run(tmp_path, task, name="whole")
    for number in range(20):
        torch.manual_seed(number)  # which must not matter
        pieces = run(tmp_path, task, name="pieces", resume=True, stop_after=0)
    first, second = read_record(whole / "record.json"), read_record(pieces / "record.json")
    assert len(second.ran_on) == 20
    assert_same_run(whole, pieces)
    for field in ("metrics", "steps", "complete"):
        assert getattr(first, field) == getattr(second, field), field
    assert [point["metrics"] for point in first.curve] == [p["metrics"] for p in second.curve]


@pytest.mark.parametrize("steps", [7, 13])
def test_an_extended_run_has_the_weights_of_the_long_one(tmp_path, steps):
    task = Toy(kind="noisy")
    whole = run(tmp_path, task, config(schedule="constant"), name="whole")
    folder = run(tmp_path, task, config(schedule="constant", steps=steps))
    assert read_record(folder / "record.json").steps == steps
    run(tmp_path, task, config(schedule="constant"), resume=True)
    found = last_tensors(folder)
    for name, value in last_tensors(whole).items():
        assert name == "rows" or torch.equal(value, found[name]), name
    first, second = read_record(whole / "record.json"), read_record(folder / "record.json")
    assert (second.steps, second.complete, len(second.ran_on)) == (20, True, 2)
    assert second.metrics == first.metrics
    run(tmp_path, task, config(schedule="constant"), resume=True)  # and is then complete
    assert read_record(folder / "record.json") == second


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_prints_how_to_resume(tmp_path, capsys, number):
    signals_left = [number]

    @dataclass(frozen=True)
    class Interrupted(Toy):
        name: ClassVar[str] = "interrupted toy"

        def batches(self, first_step, num_steps, device, shard):
            if first_step == 8 and signals_left:
                signals_left.clear()
                os.kill(os.getpid(), number)
            return super().batches(first_step, num_steps, device, shard)

    handler = signal.getsignal(number)
    folder = run(tmp_path, Interrupted(), progress=True, how_to_resume="toy --resume")
    assert signal.getsignal(number) == handler
    shown = capsys.readouterr().out
    assert "at step 9 of 20 and saved. To resume: toy --resume" in shown
    assert RunFolder(folder).newest().step == 9
    assert not (folder / "record.json").exists()
    run(tmp_path, Interrupted(), resume=True)
    assert_same_tensors(folder, run(tmp_path, name="whole"))


def test_a_finished_run_is_left_as_it_is(tmp_path):
    folder = run(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run(tmp_path, resume=True)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    record = read_record(folder / "record.json")
    (folder / "record.json").unlink()  # a process was killed before it wrote it
    run(tmp_path, resume=True)
    assert vars(read_record(folder / "record.json")) | {"date": record.date} == vars(record)


def test_the_record_has_what_each_part_ran_on(tmp_path, monkeypatch):
    folder = run(tmp_path, stop_after=0)
    real = environment.hardware
    monkeypatch.setattr("equipool.training.loop.hardware", lambda d: real(d) | {"cpu": "abacus"})
    monkeypatch.setattr("equipool.training.loop.versions", lambda: {"torch": "3.0"})
    run(tmp_path, resume=True)
    record = read_record(folder / "record.json")
    first, second = record.ran_on
    assert (first["steps"], second["steps"]) == (1, 19)
    assert first["hardware"]["cpu"] != second["hardware"]["cpu"] == "abacus"
    assert second["versions"] == {"torch": "3.0"} != first["versions"]
    assert record.hardware == second["hardware"]


def test_the_last_two_and_the_best_checkpoint_are_kept(tmp_path, monkeypatch):
    scores = iter([0.5, 0.1, 0.9, float("nan"), 0.4])
    monkeypatch.setattr(Toy, "evaluate", lambda *given: {"error": next(scores)})
    folder = run(tmp_path, training=config(evaluate_every=4))
    assert RunFolder(folder).steps() == [8, 18, 20]
    record = read_record(folder / "record.json")
    assert record.best["step"] == RunFolder(folder).read("best").step == 8
    assert [point["metrics"]["error"] for point in record.curve] == [0.5, 0.1, 0.9, None, 0.4]


def flip_a_bit(folder):
    content = bytearray(last_checkpoint(folder).read_bytes())
    content[-1] ^= 1
    last_checkpoint(folder).write_bytes(content)


def copy_from_another_run(folder):
    other = run(folder.parent, Toy(seed=1), name="other")
    shutil.copy(last_checkpoint(other), last_checkpoint(folder))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_bit, "its checksum does not match"),
        (copy_from_another_run, "task.seed: 1 in the run, 0 here"),
    ],
)
def test_the_newest_own_intact_checkpoint_is_used(tmp_path, damage, message):
    whole, folder = run(tmp_path, name="whole"), run(tmp_path)
    (folder / "record.json").unlink()
    damage(folder)
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"step": 20, "lo')
    with pytest.warns(UserWarning, match=f"{message}.*Using the checkpoint of step 18"):
        run(tmp_path, resume=True)
    assert_same_run(whole, folder)  # and the lost steps are in the log once


def test_where_the_best_is_damaged_the_last_is_suggested(tmp_path, monkeypatch):
    scores = iter([0.1, 0.5, 0.9])
    monkeypatch.setattr(Toy, "evaluate", lambda *given: {"error": next(scores)})
    folder = run(tmp_path)
    RunFolder(folder).checkpoint(8).write_bytes(b"")
    with pytest.raises(FileError, match=r"step-.*--which last"):
        load_network(folder)
    load_network(folder, "last")


def test_a_run_without_an_intact_checkpoint_does_not_start_again(tmp_path):
    folder = run(tmp_path)
    log = (folder / "log.jsonl").read_bytes()
    for file in (folder / "checkpoints").iterdir():
        file.write_bytes(b"")
    for _ in range(2):
        for use in (lambda: run(tmp_path, resume=True), lambda: load_network(folder)):
            with pytest.raises(FileError, match="no intact checkpoint is left"):
                use()
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    assert (folder / "log.jsonl").read_bytes() == log


@pytest.mark.parametrize("damage", [b'{"step": 5, "loss": \xff\xfe}', b"\x00", b'{"stfp": 5}'])
def test_a_bad_line_of_the_log_is_left_out(tmp_path, damage):
    file = run(tmp_path) / "log.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[1] = damage
    file.write_bytes(b"\n".join(lines))
    with pytest.warns(UserWarning, match=r"line 2 of .*log.jsonl is damaged"):
        assert len(read_log(file)) == len(lines) - 2


def edit_config(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    for part, values in changes.items():
        content[part] |= values
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("use", ["resume", "load"])
def test_a_changed_config_is_noticed(tmp_path, use):
    folder = run(tmp_path, stop_after=0)
    edit_config(folder, fields={"seed": 1})
    with pytest.raises(FileError, match=r"task.seed: 0 in the run, 1 here"):
        run(tmp_path, Toy(seed=1), resume=True) if use == "resume" else load_network(folder)


def test_a_run_whose_data_has_changed_is_neither_resumed_nor_evaluated(tmp_path, monkeypatch):
    folder = run(tmp_path, Fed())
    before = evaluate(folder, device="cpu")
    run(tmp_path, Fed(), resume=True)
    monkeypatch.setattr(Fed, "rows", 4)
    for use in (lambda: run(tmp_path, Fed(), resume=True), lambda: evaluate(folder, device="cpu")):
        with pytest.raises(ConfigMismatchError, match=r"data.rows: 3 in the run, 4 here"):
            use()
    monkeypatch.setattr(Fed, "rows", 3)
    assert evaluate(folder, device="cpu") == before
