"""Damage to the files of a run: never other weights without a word, never a bare traceback."""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
from runs import Heard, assert_same_run, assert_same_tensors, run
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
    assert_same_run(whole, folder)
    assert evaluate(folder, "last", device="cpu") == read_record(folder / "record.json").metrics


def copy_from_another_run(folder):
    other = run(folder.parent, Toy(seed=1), name="other")
    shutil.rmtree(last_checkpoint(folder))
    shutil.copytree(last_checkpoint(other), Checkpoints(folder).path(20))
    with pytest.raises(BrokenCheckpointError, match="belongs to another run"):
        Checkpoints(folder).read_step(20)


def copy_under_another_name(folder):
    shutil.rmtree(last_checkpoint(folder))
    shutil.copytree(Checkpoints(folder).path(18), Checkpoints(folder).path(19))


def no_safetensors(folder):
    """Its checksum may match: whoever wrote it."""
    broken = last_checkpoint(folder)
    (broken / "model.safetensors").write_bytes(b"no tensors")
    digest = hashlib.sha256(b"no tensors").hexdigest()
    edit_state(broken / "state.json", lambda c: c["files"].update({"model.safetensors": digest}))


def vanish(folder):
    shutil.rmtree(last_checkpoint(folder))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (copy_from_another_run, "belongs to another run"),
        (copy_under_another_name, "is the checkpoint of step 18"),
        (no_safetensors, "model.safetensors is damaged"),
        (vanish, "last.json names is missing"),
    ],
)
def test_the_newest_own_intact_checkpoint_is_used(tmp_path, damage, message):
    whole, folder = run(tmp_path, name="whole"), run(tmp_path)
    (folder / "record.json").unlink()
    damage(folder)
    heard = Heard()
    run(tmp_path, resume=True, progress=heard)
    assert message in heard
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


@pytest.mark.parametrize("damage", ["vanished", "empty"])
def test_a_run_without_an_intact_checkpoint_does_not_start_again(tmp_path, damage):
    folder = run(tmp_path, stop_after=0)
    log = (folder / "log.jsonl").read_bytes()
    if damage == "vanished":
        shutil.rmtree(folder / "checkpoints")
    for state in folder.glob("checkpoints/*/state.json"):
        state.write_bytes(b"")
    heard = Heard()
    message = {"vanished": "checkpoints in .* are missing", "empty": "no intact checkpoint is left"}
    for use in (lambda: run(tmp_path, resume=True, progress=heard), lambda: load_network(folder)):
        with pytest.raises(BrokenCheckpointError, match=message[damage]):
            use()
    assert "instead" not in heard
    assert (folder / "log.jsonl").read_bytes() == log


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
