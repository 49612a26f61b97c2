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
    assert (second.metrics, second.steps, second.complete) == (first.metrics, 20, True)


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
    assert (second.steps, second.complete, second.metrics) == (20, True, first.metrics)


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
    run(tmp_path, stop_after=0)
    monkeypatch.setattr("equipool.training.loop.versions", lambda: {"torch": "3.0"})
    first, second = read_record(run(tmp_path, resume=True) / "record.json").ran_on
    assert (first["steps"], first["versions"]) == (1, environment.versions())
    assert (second["steps"], second["versions"]) == (19, {"torch": "3.0"})


def test_the_last_two_and_the_best_checkpoint_are_kept(tmp_path, monkeypatch):
    scores = iter([0.5, 0.1, 0.9, float("nan"), 0.4])
    monkeypatch.setattr(Toy, "evaluate", lambda *given: {"error": next(scores)})
    folder = run(tmp_path, training=config(evaluate_every=4))
    assert RunFolder(folder).steps() == [8, 18, 20]
    record = read_record(folder / "record.json")
    assert record.best["step"] == RunFolder(folder).read("best").step == 8
    assert [point["metrics"]["error"] for point in record.curve] == [0.5, 0.1, 0.9, None, 0.4]


def test_the_newest_intact_checkpoint_is_used(tmp_path):
    whole, folder = run(tmp_path, name="whole"), run(tmp_path)
    (folder / "record.json").unlink()
    newest = RunFolder(folder).checkpoint(20)
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"step": 20, "lo')
    with pytest.warns(UserWarning, match=r"its checksum.*Using the checkpoint of step 18"):
        run(tmp_path, resume=True)
    assert_same_run(whole, folder)  # and the lost steps are in the log once


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


@pytest.mark.parametrize("damage", ['{"step": 5, "loss": \0}', '{"stfp": 5}', "[]"])
def test_a_bad_line_of_the_log_is_left_out(tmp_path, damage):
    file = run(tmp_path) / "log.jsonl"
    first, _, *others = file.read_text().splitlines()
    file.write_text("\n".join((first, damage, *others)))
    with pytest.warns(UserWarning, match=r"line 2 of .*log.jsonl is damaged"):
        assert read_log(file) == [json.loads(line) for line in (first, *others)]


def test_a_changed_config_is_noticed(tmp_path):
    folder = run(tmp_path, stop_after=0)
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))
    for use in (lambda: run(tmp_path, Toy(seed=1), resume=True), lambda: load_network(folder)):
        with pytest.raises(FileError, match=r"task.seed: 0 in the run, 1 here"):
            use()


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
