from pathlib import Path

import pytest

from equipool.experiments.data_folder import data_folder, using_data_folder


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    monkeypatch.delenv("EQUIPOOL_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_the_order_of_what_says_where_data_lies(monkeypatch, tmp_path):
    assert data_folder() == Path.home() / ".cache" / "equipool"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "equipool"
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "variable"))
    assert data_folder() == tmp_path / "variable"
    with using_data_folder(tmp_path / "block"):
        assert data_folder() == tmp_path / "block"
        assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder() == tmp_path / "variable"


@pytest.mark.parametrize("value", ["", "relative/cache"])
def test_a_cache_folder_that_is_no_absolute_path_is_ignored(monkeypatch, value):
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert data_folder() == Path.home() / ".cache" / "equipool"


def test_an_empty_variable_says_nothing(monkeypatch):
    monkeypatch.setenv("EQUIPOOL_DATA", "")
    assert data_folder() == Path.home() / ".cache" / "equipool"


def test_the_home_folder_is_understood(monkeypatch):
    monkeypatch.setenv("EQUIPOOL_DATA", "~/data")
    assert data_folder() == Path.home() / "data"
    assert data_folder("~/other") == Path.home() / "other"
    with using_data_folder("~/block"):
        assert data_folder() == Path.home() / "block"


def test_blocks_inside_blocks(tmp_path):
    with using_data_folder(tmp_path / "outer"):
        with using_data_folder(None):
            assert data_folder() == tmp_path / "outer"
        with using_data_folder(tmp_path / "inner"):
            assert data_folder() == tmp_path / "inner"
        assert data_folder() == tmp_path / "outer"


def test_a_block_that_fails_is_left_as_well(tmp_path):
    def fail():
        with using_data_folder(tmp_path):
            raise RuntimeError("inside")

    before = data_folder()
    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert data_folder() == before
