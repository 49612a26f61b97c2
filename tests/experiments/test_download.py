import hashlib
import logging
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from equipool.experiments import download
from equipool.experiments.download import MissingDataError, Source, fetch

CONTENT = b"some data"
CHECKSUM = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


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


def test_what_is_not_there_is_downloaded_once(published, tmp_path):
    file = fetch(published, tmp_path / "new" / "folder")
    assert file == tmp_path / "new" / "folder" / "d.zip"
    assert file.read_bytes() == CONTENT
    nowhere = Source("d.zip", "http://127.0.0.1:9/nothing", CHECKSUM, "The data")
    assert fetch(nowhere, tmp_path / "new" / "folder") == file


def test_a_wrong_checksum_is_refused_and_nothing_kept(published, tmp_path):
    wrong = Source("d.zip", published.url, "md5:" + 32 * "0", "The data")
    with pytest.raises(MissingDataError, match="The download failed: MD5 hash of downloaded file"):
        fetch(wrong, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_that_is_not_published_any_more(published, tmp_path):
    gone = Source("d.zip", published.url + "x", CHECKSUM, "The data")
    with pytest.raises(MissingDataError, match="The download failed: 404"):
        fetch(gone, tmp_path / "data")


def test_without_pooch_it_says_what_to_do(published, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "find_spec", lambda name: None)
    with pytest.raises(MissingDataError) as raised:
        fetch(published, tmp_path / "data")
    told = str(raised.value)
    assert f"The data is not there: get {published.url}" in told
    assert f"put it at {tmp_path / 'data' / 'd.zip'}" in told
    assert "--data-dir or EQUIPOOL_DATA" in told
    assert "pip install 'equipool[data]'" in told
    assert "\n" not in told
