"""Making the file of a data set: whole or not at all, one process at a time, piece by piece."""

import errno
import shutil
import threading
import weakref
from contextlib import contextmanager

import pytest
from molecule_files import files_in
from tox21_table import SMILES, refuse_to_prepare, write_table

from equipool.experiments.data_folder import using_data_folder
from equipool.experiments.molecules.data import CsvSource, load_molecules, loading
from equipool.experiments.molecules.data import featurising as featurising_module
from equipool.experiments.molecules.data.cache import write_cache
from equipool.experiments.molecules.data.locking import alone


class Interrupted(Exception):  # noqa: N818 - what it is
    pass


def interrupt_second_piece(monkeypatch):
    made = []
    original = featurising_module.make_piece

    def make_piece(*arguments):
        if made:
            raise Interrupted
        made.append(None)
        return original(*arguments)

    monkeypatch.setattr(featurising_module, "make_piece", make_piece)


def test_an_interruption_leaves_nothing_half(folder, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_second_piece(patch)
        with pytest.raises(Interrupted):
            load_molecules("tox21")
    assert files_in(folder) == ["molecules", "molecules/tox21.lock", "tox21.csv.gz"]
    assert len(load_molecules("tox21")) == len(SMILES)


def test_an_interruption_leaves_the_old_file(folder, monkeypatch):
    load_molecules("tox21")
    path = folder / "molecules" / "tox21.safetensors"
    before = path.read_bytes()
    write_table(folder, SMILES[:-1])
    with monkeypatch.context() as patch:
        interrupt_second_piece(patch)
        with pytest.raises(Interrupted):
            load_molecules("tox21")
    assert path.read_bytes() == before


@pytest.mark.parametrize("before", [True, False])
def test_a_full_disk_leaves_nothing_half(folder, monkeypatch, before):
    path = folder / "molecules" / "tox21.safetensors"
    if before:
        load_molecules("tox21")
        write_table(folder, SMILES[:-1])
    content = path.read_bytes() if before else None

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("equipool.experiments.molecules.data.checked_file.os.fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            load_molecules("tox21")
    assert (path.read_bytes() if path.exists() else None) == content
    assert not (folder / "molecules" / ".tox21.partial").exists()


def test_what_a_killed_process_left_is_cleared_away(folder):
    left = folder / "molecules" / ".tox21.partial"
    left.mkdir(parents=True)
    (left / "atoms").write_bytes(b"half of it")
    (left / "tox21.safetensors").write_bytes(b"half of it")
    assert len(load_molecules("tox21")) == len(SMILES)
    assert not left.exists()


def test_a_process_that_waited_uses_what_the_other_made(folder, monkeypatch):
    with using_data_folder(folder.parent / "elsewhere"):
        shutil.copytree(folder, folder.parent / "elsewhere")
        load_molecules("tox21")

    @contextmanager
    def wait_for_the_other(path):
        shutil.copy(folder.parent / "elsewhere" / "molecules" / "tox21.safetensors", path.parent)
        yield

    monkeypatch.setattr(loading, "alone", wait_for_the_other)
    refuse_to_prepare(monkeypatch)
    assert len(load_molecules("tox21")) == len(SMILES)


def test_one_process_at_a_time(tmp_path, monkeypatch):
    waiting, entered = threading.Event(), threading.Event()
    monkeypatch.setattr(
        "equipool.experiments.molecules.data.locking.say", lambda text: waiting.set()
    )

    def other():
        with alone(tmp_path / "lock"):
            entered.set()

    thread = threading.Thread(target=other)
    with alone(tmp_path / "lock"):
        thread.start()
        assert waiting.wait(timeout=30)
        assert not entered.is_set()
    thread.join(timeout=30)
    assert entered.is_set()


def test_a_folder_that_nobody_may_write_to(folder, tmp_path, monkeypatch):
    """The file goes to the folder of EQUIPOOL_DATA, or else to the user's cache folder."""
    shared = tmp_path / "shared"
    shutil.copytree(folder, shared)
    shared.chmod(0o555)
    load_molecules("tox21", shared)
    assert (folder / "molecules" / "tox21.safetensors").exists()
    assert files_in(shared) == ["tox21.csv.gz"]

    monkeypatch.setenv("EQUIPOOL_DATA", str(shared))
    load_molecules("tox21")
    made = tmp_path / "cache" / "equipool" / "molecules" / "tox21.safetensors"
    assert made.exists()
    refuse_to_prepare(monkeypatch)
    load_molecules("tox21")
    with using_data_folder(shared):
        load_molecules("tox21")


def test_no_folder_can_be_written_to(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "equipool.experiments.molecules.data.places._can_be_written", lambda place: False
    )
    with pytest.raises(PermissionError, match="EQUIPOOL_DATA"):
        load_molecules("tox21")


def test_pieces_are_not_kept(folder, tmp_path):
    """When a piece is asked for, the one before the last is no longer in memory."""
    source = CsvSource(folder / "tox21.csv.gz")
    contents = source.examine()
    seen = []

    def watched():
        for piece in source.pieces(contents):
            assert all(earlier() is None for earlier in seen[:-1])
            seen.append(weakref.ref(piece))
            yield piece
            del piece

    write_cache(tmp_path / "file", tmp_path, source, contents, watched())
    assert len(seen) > 1
    assert seen[-1]() is None


def test_a_table_is_read_as_its_molecules_are_asked_for(folder, monkeypatch):
    read = []
    original = CsvSource._batches

    def batches(self):
        for batch in original(self):
            read.append(batch)
            yield batch

    monkeypatch.setattr(CsvSource, "_batches", batches)
    source = CsvSource(folder / "tox21.csv.gz")
    pieces = source.pieces(source.examine())
    next(pieces)
    assert len(read) == 1
