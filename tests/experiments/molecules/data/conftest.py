"""A data folder with a table in it."""

import pytest
from tox21_table import SMILES, write_table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with a table, and a user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    write_table(tmp_path / "data", SMILES)
    return tmp_path / "data"
