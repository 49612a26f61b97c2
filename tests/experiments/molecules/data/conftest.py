"""A data folder with a table in it, and a cache folder for the user."""

import pytest
from molecule_files import SMILES, write_tox21


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder. Without it, tests would write to the real one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "equipool" / "molecules"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A shared data folder with a table of the form of Tox21."""
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    write_tox21(tmp_path / "data", SMILES)
    return tmp_path / "data"
