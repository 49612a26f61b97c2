"""Damage to the files of a run: never other weights without a word, never a bare traceback."""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
from runs import Heard, assert_same_tensors, numbers, run
from toy import Toy, config

from equipool.training import (
    BrokenCheckpointError,
    OutOfMemoryError,
    evaluate,
    load_network,
    read_log,
    read_record,
)
from equipool.training.checkpoint import Checkpoints
from equipool.training.config import task_from_config, training_from_config


def last_checkpoint(folder):
    return Checkpoints(folder).path(Checkpoints(folder).steps()[-1])


def edit_json(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_state(file, change):
    """Edit the state of a checkpoint so that its checksum matches."""
    content = json.loads(file.read_text())
    change(content)
    del content["sha256"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(content | {"sha256": digest}))


def without_ids(folder):
    """Make it a run of a version that wrote neither ids nor a checksum of config.json."""
    edit_json(folder / "config.json", lambda c: (c.pop("sha256"), c.pop("run")))
    for state in folder.glob("checkpoints/*/state.json"):
        edit_state(state, lambda c: (c.pop("run"), c["state"].pop("logged_step")))


@pytest.mark.parametrize("use", ["resume", "load"])
def test_a_changed_config_is_noticed(tmp_path, use):
    folder = run(tmp_path, stop_after=0)
    text = (folder / "config.json").read_text()
    assert '"seed": 0' in text
    (folder / "config.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match=r"config.json was changed .* checksum does not match"):
        run(tmp_path, Toy(seed=1), resume=True) if use == "resume" else load_network(folder)


def test_a_run_of_an_older_version_resumes_and_loads(tmp_path):
    whole = run(tmp_path, name="whole")
    folder = run(tmp_path, stop_after=0)
    without_ids(folder)
    run(tmp_path, resume=True)
    assert_same_tensors(whole, folder)
    assert numbers(whole) == numbers(folder)
    assert evaluate(folder, "last", device="cpu") == read_record(folder / "record.json").metrics


def test_a_checkpoint_of_another_run_is_refused_and_the_own_one_used(tmp_path):
    whole, other = run(tmp_path, name="whole"), run(tmp_path, Toy(seed=1), name="other")
    folder = run(tmp_path, stop_after=0)
    foreign = last_checkpoint(folder).with_name(last_checkpoint(other).name)
    shutil.copytree(last_checkpoint(other), foreign)
    with pytest.raises(BrokenCheckpointError, match="belongs to another run"):
        Checkpoints(folder).read_step(20)
    heard = Heard()
    run(tmp_path, resume=True, progress=heard)
    assert "belongs to another run. Using the checkpoint of step 1 instead" in heard
    assert_same_tensors(whole, folder)


def test_a_checkpoint_under_another_name_is_refused(tmp_path):
    whole, folder = run(tmp_path, name="whole"), run(tmp_path, stop_after=0)
    shutil.copytree(Checkpoints(folder).path(1), Checkpoints(folder).path(9))
    heard = Heard()
    run(tmp_path, resume=True, progress=heard)
    assert "is the checkpoint of step 1. Using" in heard
    assert_same_tensors(whole, folder)


def test_a_file_that_is_no_safetensors_falls_back(tmp_path):
    """Its checksum may match: whoever wrote it."""
    whole, folder = run(tmp_path, name="whole"), run(tmp_path)
    (folder / "record.json").unlink()
    broken = last_checkpoint(folder)
    (broken / "model.safetensors").write_bytes(b"no tensors")
    digest = hashlib.sha256(b"no tensors").hexdigest()
    edit_state(broken / "state.json", lambda c: c["files"].update({"model.safetensors": digest}))
    heard = Heard()
    run(tmp_path, resume=True, progress=heard)
    assert "model.safetensors is damaged" in heard
    assert "Using the checkpoint of step 18 instead" in heard
    assert_same_tensors(whole, folder)


@pytest.mark.parametrize("damage", [b'{"step": 5, "loss": \xff\xfe}', b"\x00", b'{"stfp": 5}'])
def test_a_bad_line_of_the_log_is_left_out(tmp_path, damage):
    folder = run(tmp_path)
    file = folder / "log.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[1] = damage
    file.write_bytes(b"\n".join(lines))
    with pytest.warns(UserWarning, match=r"line 2 of .*log.jsonl is damaged"):
        assert len(read_log(file)) == len(lines) - 2
    (folder / "record.json").unlink()
    shutil.rmtree(last_checkpoint(folder))
    heard = Heard()
    run(tmp_path, resume=True, progress=heard)
    assert "line 2 of" in heard
    points = [e["step"] for e in read_log(file) if "event" not in e]
    assert points == [10, 15, 20]


@pytest.mark.parametrize("damage", ["checkpoint", "pointer"])
def test_where_the_best_is_damaged_the_last_is_suggested(tmp_path, damage):
    folder = run(tmp_path)
    best = Checkpoints(folder).read("best", print).path
    file = best / "model.safetensors" if damage == "checkpoint" else folder / "best.json"
    file.write_bytes(b"")
    with pytest.raises(BrokenCheckpointError, match=r"is damaged.*\(--which last\)"):
        load_network(folder)
    load_network(folder, "last")


def test_vanished_checkpoints_are_an_error(tmp_path):
    folder = run(tmp_path, stop_after=0)
    log = (folder / "log.jsonl").read_bytes()
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(BrokenCheckpointError, match=r"checkpoints of .* are missing"):
        run(tmp_path, resume=True)
    assert (folder / "log.jsonl").read_bytes() == log


def test_a_vanished_last_checkpoint_is_a_warning(tmp_path):
    whole, folder = run(tmp_path, name="whole"), run(tmp_path)
    (folder / "record.json").unlink()
    shutil.rmtree(last_checkpoint(folder))
    heard = Heard()
    run(tmp_path, resume=True, progress=heard)
    assert "last.json names is missing. Using the checkpoint of step 18 instead" in heard
    assert_same_tensors(whole, folder)


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path):
    whole, folder = run(tmp_path, name="whole"), run(tmp_path, stop_after=0)
    shutil.rmtree(folder / "checkpoints")
    (folder / "last.json").unlink()
    run(tmp_path, resume=True)
    assert_same_tensors(whole, folder)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("training", "steps", "20"), ("training", "steps", 20.5), ("training", "compile", 1),
        ("training", "learning_rate", None), ("fields", "batch_size", "4"), ("fields", "kind", 3),
        ("fields", "broken_steps", ["1"]), ("fields", "nothing", 3),
    ],
)  # fmt: skip
def test_a_wrong_type_in_the_config_is_named(tmp_path, part, name, value):
    folder = run(tmp_path, stop_after=0)

    def change(content):
        content[part][name] = value
        del content["sha256"]

    edit_json(folder / "config.json", change)
    with pytest.raises(ValueError, match=f"config.json cannot be used: .*{name}"):
        load_network(folder, "last")


def test_right_types_are_read():
    content = {"task": "toy", "fields": {"broken_steps": [1, 2], "seed": 3}}
    assert task_from_config(content) == Toy(seed=3, broken_steps=(1, 2))
    training = {"steps": 20, "learning_rate": 1, "clip_norm": None, "capture": True}
    assert training_from_config({"training": training}).learning_rate == 1


def test_running_out_of_memory_is_said_with_what_to_do(tmp_path):
    with pytest.raises(OutOfMemoryError, match=r"reduce the batch size \(now 1000000000\)"):
        run(tmp_path, Toy(batch_size=10**9), replace(config(), chunk=10**6))
    assert not list(tmp_path.iterdir())
