"""Where data is, how it is downloaded, and the streams it is drawn from."""

import hashlib
import logging
import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from equipool.experiments import data
from equipool.experiments.data import (
    MissingDataError,
    Source,
    data_folder,
    fetch,
    using_data_folder,
)
from equipool.training import generator_for

CACHE = Path.home() / ".cache" / "equipool"
CONTENT = b"some data"
CHECKSUM = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    monkeypatch.delenv("EQUIPOOL_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_an_argument_comes_before_a_block_before_the_variable_before_the_cache(
    monkeypatch, tmp_path
):
    assert data_folder() == CACHE
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "equipool"
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "variable"))
    assert data_folder() == tmp_path / "variable"
    with using_data_folder(tmp_path / "block"):
        assert data_folder() == tmp_path / "block"
        assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder() == tmp_path / "variable"


@pytest.mark.parametrize(
    ("name", "value"),
    [("XDG_CACHE_HOME", ""), ("XDG_CACHE_HOME", "relative/cache"), ("EQUIPOOL_DATA", "")],
)
def test_empty_and_relative_variables_are_ignored(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert data_folder() == CACHE


def test_the_home_directory_is_expanded(monkeypatch):
    monkeypatch.setenv("EQUIPOOL_DATA", "~/data")
    assert data_folder() == Path.home() / "data"
    assert data_folder("~/other") == Path.home() / "other"
    with using_data_folder("~/block"):
        assert data_folder() == Path.home() / "block"


def test_nested_blocks_and_blocks_that_fail(tmp_path):
    with using_data_folder(tmp_path / "outer"):
        with using_data_folder(None):
            assert data_folder() == tmp_path / "outer"
        with suppress(RuntimeError), using_data_folder(tmp_path / "inner"):
            assert data_folder() == tmp_path / "inner"
            raise RuntimeError
        assert data_folder() == tmp_path / "outer"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *values): ...


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A source on a server of this computer."""
    place = tmp_path / "server"
    place.mkdir()
    (place / "data.zip").write_bytes(CONTENT)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    logging.getLogger("pooch").setLevel("ERROR")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=place))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Source("d.zip", f"http://127.0.0.1:{server.server_port}/data.zip", CHECKSUM, "The data")
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_missing_file_is_downloaded_once(published, tmp_path):
    file = fetch(published, tmp_path / "new" / "folder")
    assert file == tmp_path / "new" / "folder" / "d.zip"
    assert file.read_bytes() == CONTENT
    nowhere = Source("d.zip", "http://127.0.0.1:9/nothing", CHECKSUM, "The data")
    assert fetch(nowhere, tmp_path / "new" / "folder") == file


def test_a_download_that_fails_leaves_nothing(published, tmp_path):
    wrong = Source("d.zip", published.url, "md5:" + 32 * "0", "The data")
    with pytest.raises(MissingDataError, match="The download failed: MD5 hash of downloaded file"):
        fetch(wrong, tmp_path / "data")
    gone = Source("d.zip", published.url + "x", CHECKSUM, "The data")
    with pytest.raises(MissingDataError, match="The download failed: 404"):
        fetch(gone, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_without_pooch_the_message_says_what_to_do(published, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(MissingDataError) as raised:
        fetch(published, tmp_path / "data")
    text = str(raised.value)
    for part in (f"The data is missing: get {published.url}", str(tmp_path / "data" / "d.zip"),
                 "--data-dir or EQUIPOOL_DATA", "pip install 'equipool[data]'"):  # fmt: skip
        assert part in text
    assert "\n" not in text


def test_equal_keys_give_equal_streams_and_other_keys_other_ones():
    draws = [torch.rand(8, generator=generator_for(CPU, *key)) for key in [("a", 1), ("a", 1)]]
    assert torch.equal(*draws)
    keys = [("a", i, j) for i in range(30) for j in range(30)] + [("b", 0, 0), ("a", "0", 0)]
    seeds = {generator_for(CPU, *key).initial_seed() for key in keys}
    assert len(seeds) == len(keys)
    assert max(seeds) < 2**32  # a CPU reads no more
