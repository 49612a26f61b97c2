"""A data folder and a cache folder for the user, both empty."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where the user's own prepared tables go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "equipool" / "molecules"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A shared data folder."""
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"
