"""Checkpoints are whole or not there, and damage is noticed."""

import errno
import json
import os
from dataclasses import dataclass

import pytest
import torch
from victims import HalfWritten

from equipool.training import BrokenCheckpointError, StorageError
from equipool.training.checkpoint import (
    FORMAT,
    Best,
    Checkpoints,
    naming,
    read_checkpoint,
    write_checkpoint,
)

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def tensors(step):
    weight = torch.full((3, 4), float(step))
    return {"model": {"weight": weight, "tied": weight}, "optimizer": {"step": torch.tensor(step)}}


def save(checkpoints, step, best=None):
    checkpoints.save(tensors(step), {"step": step, "loss": 0.1 + step}, best)


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path)


def test_what_is_written_is_read(checkpoints):
    save(checkpoints, 5)
    found = read_checkpoint(checkpoints.path(5))
    assert found.state == {"step": 5, "loss": 5.1}
    assert torch.equal(found.tensors["model"]["tied"], torch.full((3, 4), 5.0))
    assert found.tensors["optimizer"]["step"].dtype == torch.int64
    assert sorted(path.name for path in checkpoints.path(5).iterdir()) == sorted(FILES)


def test_the_last_two_and_the_best_are_kept(checkpoints):
    best = None
    for step in (1, 2, 3, 4, 5, 6):
        best = Best(step, 0.5) if step == 2 else best
        save(checkpoints, step, best)
    assert checkpoints.steps() == [2, 5, 6]
    assert {path.name for path in checkpoints.root.iterdir()} == {
        f"step-{step:08d}" for step in (2, 5, 6)
    }
    assert checkpoints.read("best", print).step == 2
    assert checkpoints.read("last", print).step == 6
    pointer = json.loads((checkpoints.folder / "best.json").read_text())
    assert pointer == {"step": 2, "checkpoint": "checkpoints/step-00000002", "value": 0.5}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["truncated", "empty", "a bit", "missing"])
def test_damage_is_noticed_and_the_one_before_is_used(checkpoints, file, damage):
    save(checkpoints, 1)
    save(checkpoints, 2)
    path = checkpoints.path(2) / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        changed = {
            "truncated": content[:-7],
            "empty": b"",
            "a bit": content[:middle] + flipped + content[middle + 1 :],
        }
        path.write_bytes(changed[damage])
    heard = []
    assert checkpoints.newest(heard.append).step == 1
    assert len(heard) == 1
    assert str(path) in heard[0]
    assert "Using the checkpoint of step 1 instead" in heard[0]


def test_nothing_whole_is_nothing(checkpoints):
    assert checkpoints.newest(print) is None
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoints.read("last", print)
    save(checkpoints, 1)
    with pytest.raises(ValueError, match="which is 'newest', expected 'best' or 'last'"):
        checkpoints.read("newest", print)


@pytest.mark.parametrize("content", ["{}", "[]", "", '{"step": "first"}'])
def test_a_pointer_that_points_nowhere_is_damaged(checkpoints, content):
    save(checkpoints, 1, Best(1, 0.5))
    (checkpoints.folder / "best.json").write_text(content)
    with pytest.raises(BrokenCheckpointError, match=r"best.json is damaged"):
        checkpoints.read("best", print)


@pytest.mark.parametrize(
    ("number", "advised"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EFBIG, True), (errno.EACCES, False)],
)
def test_to_make_room_is_advised_where_that_helps(tmp_path, number, advised):
    with pytest.raises(StorageError) as raised, naming(tmp_path):
        raise OSError(number, os.strerror(number))
    assert os.strerror(number) in str(raised.value)
    assert ("make room and resume" in str(raised.value)) is advised


def test_the_same_step_can_be_written_again(checkpoints):
    save(checkpoints, 1)
    (checkpoints.path(1) / "state.json").write_text("{}")
    save(checkpoints, 1)
    assert checkpoints.newest(pytest.fail).step == 1
    assert [path.name for path in checkpoints.root.iterdir()] == ["step-00000001"]


def test_what_was_left_unfinished_is_removed(checkpoints):
    save(checkpoints, 1)
    for name in (".step-00000002.partial", ".step-00000001.old"):
        (checkpoints.root / name).mkdir()
        (checkpoints.root / name / "model.safetensors").write_bytes(b"half")
    assert checkpoints.steps() == [1]
    checkpoints.clean()
    assert [path.name for path in checkpoints.root.iterdir()] == ["step-00000001"]


def test_a_state_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("equipool.training.checkpoint.FORMAT", FORMAT + 1)
    write_checkpoint(tmp_path / "new", tensors(1), {"step": 1})
    monkeypatch.undo()
    with pytest.raises(BrokenCheckpointError, match=f"has format {FORMAT + 1}, expected {FORMAT}"):
        read_checkpoint(tmp_path / "new")


@dataclass
class FullDisk:
    """The n-th call of a function, and all after it, find the disk full."""

    function: object
    left: int

    def __call__(self, *arguments):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.function(*arguments)


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("calls", range(5))
def test_a_full_disk_names_the_file_and_leaves_the_last_whole(
    checkpoints, monkeypatch, name, calls
):
    save(checkpoints, 1)
    limit = min(calls, 1) if name == "replace" else calls
    with monkeypatch.context() as patch:
        patch.setattr(os, name, FullDisk(getattr(os, name), limit))
        with pytest.raises(StorageError, match=r"could not write .*No space left") as raised:
            save(checkpoints, 2)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename.startswith(str(checkpoints.folder))
    assert checkpoints.newest(pytest.fail).step in (1, 2)
    assert read_checkpoint(checkpoints.path(1)).step == 1
    assert not list(checkpoints.folder.rglob(".*partial*"))
    save(checkpoints, 3)
    assert checkpoints.newest(pytest.fail).step == 3


def test_a_disk_that_is_full_while_writing(checkpoints, monkeypatch):
    save(checkpoints, 1)
    kind = type(checkpoints.folder)
    real, full = kind.open, FullDisk(None, left=0)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "open", lambda *given: HalfWritten(real(*given), full))
        with pytest.raises(StorageError, match=r"could not write model.safetensors"):
            save(checkpoints, 2)
    assert checkpoints.steps() == [1]
    assert checkpoints.newest(pytest.fail).step == 1
    assert not list(checkpoints.folder.rglob(".*partial*"))
