"""Where data is, and the streams it is drawn from."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from equipool.experiments.common import data_folder, using_data_folder
from equipool.training import generator_for

CACHE = Path.home() / ".cache" / "equipool"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    monkeypatch.delenv("EQUIPOOL_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_a_block_comes_before_the_variable_before_the_cache(monkeypatch, tmp_path):
    assert data_folder() == CACHE
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "equipool"
    monkeypatch.setenv("EQUIPOOL_DATA", "~/variable")
    assert data_folder() == Path.home() / "variable"
    with using_data_folder("~/outer"):
        with using_data_folder(None):
            assert data_folder() == Path.home() / "outer"
        with suppress(RuntimeError), using_data_folder(tmp_path / "inner"):
            assert data_folder() == tmp_path / "inner"
            raise RuntimeError
        assert data_folder() == Path.home() / "outer"
    assert data_folder() == Path.home() / "variable"


def test_equal_keys_give_equal_streams_and_other_keys_other_ones():
    draws = [torch.rand(8, generator=generator_for(CPU, *key)) for key in [("a", 1), ("a", 1)]]
    assert torch.equal(*draws)
    keys = [("a", i, j) for i in range(30) for j in range(30)] + [("b", 0, 0), ("a", "0", 0)]
    seeds = {generator_for(CPU, *key).initial_seed() for key in keys}
    assert len(seeds) == len(keys)
    assert max(seeds) < 2**32  # a CPU reads no more
