import json

import pytest

from equipool.training.artifacts import (
    Examination,
    Gallery,
    Picture,
    Table,
    examination_folder,
    read_examination,
    write_examination,
)

FULL = Examination(
    (Table("Shares", ("a", "b", "c"), (("x", 0.5, 3), ("y", 1.0, "-"))),),
    (
        Gallery("Animals", (Picture("a cat", b"\x89PNG cat"), Picture("<a dog>", b"\x89PNG dog"))),
        Gallery("Plants", (Picture("a tree", b"\x89PNG tree"),)),
    ),
)


def test_what_is_written_is_read_again(tmp_path):
    folder = examination_folder(tmp_path / "run", "best")
    write_examination(FULL, folder)
    found = read_examination(folder)
    assert found == FULL
    kinds = [type(cell) for row in found.tables[0].rows for cell in row]
    assert kinds == [str, float, int, str, float, str]  # a share of 1.0 is no count
    content = json.loads((folder / "examination.json").read_text())
    assert content["galleries"][0]["pictures"][0] == {"caption": "a cat", "file": "1-01.png"}
    assert (folder / "1-01.png").read_bytes() == b"\x89PNG cat"
    assert len(list(folder.glob("*.png"))) == 3


def test_a_new_one_replaces_the_old(tmp_path):
    write_examination(FULL, tmp_path / "e")
    less = Examination(FULL.tables, FULL.galleries[1:])
    write_examination(less, tmp_path / "e")
    assert read_examination(tmp_path / "e") == less
    assert len(list((tmp_path / "e").iterdir())) == 2


def test_none_is_empty(tmp_path):
    assert read_examination(tmp_path / "nothing") == Examination()
    assert not Examination()
    assert FULL
    assert Examination(FULL.tables)
    assert Examination(galleries=FULL.galleries)


@pytest.mark.parametrize("damage", ["no JSON", "[]", "{}", '{"tables": [{}], "galleries": []}'])
def test_a_damaged_one_is_named(tmp_path, damage):
    write_examination(FULL, tmp_path / "e")
    (tmp_path / "e" / "examination.json").write_text(damage)
    with pytest.raises(ValueError, match=r"examination.json is not an examination"):
        read_examination(tmp_path / "e")


def test_a_missing_picture_is_named(tmp_path):
    write_examination(FULL, tmp_path / "e")
    (tmp_path / "e" / "1-02.png").unlink()
    with pytest.raises(ValueError, match=r"examination.json is not .*1-02.png"):
        read_examination(tmp_path / "e")
