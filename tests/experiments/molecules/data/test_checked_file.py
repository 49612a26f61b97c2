"""Files in which every damaged byte is found."""

import json

import pytest
from safetensors.torch import load_file

from equipool.experiments.molecules.data.checked_file import (
    Stream,
    UnusableFileError,
    check,
    read_about,
    read_tensors,
    write_checked,
)


def small_file(path):
    tensors = {
        "bytes": Stream("U8", (5,), [bytes([1, 2]), bytes([3, 4, 5])]),
        "numbers": Stream("I64", (2, 1), [(7).to_bytes(8, "little"), (8).to_bytes(8, "little")]),
        "none": Stream("F32", (0, 3), []),
    }
    write_checked(path, {"what": "é"}, tensors)
    return path


def test_a_checked_file_is_a_file_of_safetensors(tmp_path):
    path = small_file(tmp_path / "small")
    check(path)
    assert read_about(path) == {"what": "é"}
    for read in (read_tensors, load_file):
        found = read(path)
        assert set(found) == {"bytes", "numbers", "none"}
        assert found["bytes"].tolist() == [1, 2, 3, 4, 5]
        assert found["numbers"].tolist() == [[7], [8]]
        assert found["none"].shape == (0, 3)


def test_tensors_are_aligned(tmp_path):
    content = small_file(tmp_path / "small").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header["numbers"]["data_offsets"] == [0, 16]
    assert header["none"]["data_offsets"] == [16, 16]
    assert header["bytes"]["data_offsets"] == [16, 21]


def test_every_damaged_byte_is_found(tmp_path):
    path = small_file(tmp_path / "small")
    content = path.read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(UnusableFileError, match="is damaged"):
            check(path)


def test_every_cut_is_found(tmp_path):
    path = small_file(tmp_path / "small")
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UnusableFileError, match="is damaged"):
            check(path)


def test_a_tensor_that_is_not_of_its_shape_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected 3 bytes by their shapes, found 2"):
        write_checked(tmp_path / "small", {}, {"bytes": Stream("U8", (3,), [b"ab"])})
