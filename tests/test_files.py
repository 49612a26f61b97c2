"""Files are the old or the new one, and damage is noticed."""

import json
import os
import resource

import pytest
import torch
from safetensors.torch import save

from equipool.files import (
    FileError,
    StorageError,
    load_tensors,
    save_tensors,
    write_json,
    write_text,
)

KIND = "test 1"
METADATA = {"step": 3, "loss": float("inf")}
WEIGHT = torch.arange(6.0).view(2, 3)
TENSORS = {
    "weight": WEIGHT,
    "tied": WEIGHT.T,
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "flag": torch.tensor(True),
    "none": torch.zeros(0, 4),
}


@pytest.fixture
def file(tmp_path):
    save_tensors(tmp_path / "some.safetensors", TENSORS, METADATA, KIND)
    return tmp_path / "some.safetensors"


@pytest.fixture
def full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_tensors_and_metadata_come_back(file):
    tensors, metadata = load_tensors(file, KIND)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)


def test_the_same_content_gives_the_same_bytes(file, tmp_path):
    save_tensors(tmp_path / "again", TENSORS, METADATA, KIND)
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_any_flipped_bit_is_noticed(file):
    content = file.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        with pytest.raises(FileError, match=r"some\.safetensors"):
            load_tensors(file, KIND)


def test_a_file_cut_off_anywhere_is_noticed(file):
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(FileError, match="not a file that equipool wrote, or is damaged"):
            load_tensors(file, KIND)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x00" * 100, save({"weight": WEIGHT})])
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(FileError, match="not a file that equipool wrote"):
        load_tensors(tmp_path / "a", KIND)


def test_another_kind_is_refused(file):
    with pytest.raises(FileError, match="'test 1', expected 'test 2'"):
        load_tensors(file, "test 2")


def test_a_full_disk_keeps_the_old_file(file, full_disk):
    with pytest.raises(StorageError, match=r"could not write some\.safetensors.*make room"):
        save_tensors(file, {"large": torch.zeros(1000)}, {"step": 4}, KIND)
    assert load_tensors(file, KIND)[1] == METADATA
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_while_writing_keeps_the_old_file(file, monkeypatch, call):
    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, killed)
        with pytest.raises(KeyboardInterrupt):
            save_tensors(file, TENSORS, {"step": 4}, KIND)
    assert load_tensors(file, KIND)[1] == METADATA


def test_text_and_json_replace_what_was_there(tmp_path):
    file = tmp_path / "a.json"
    write_text(file, "ä")
    assert file.read_bytes() == "ä".encode()
    write_json(file, {"a": [1, float("nan")], "b": (float("inf"),)})
    assert json.loads(file.read_text()) == {"a": [1, None], "b": [None]}
    assert os.listdir(tmp_path) == ["a.json"]
