"""Preparing caches: complete or absent, one process at a time, and in the right folder."""

import errno
import shutil
import threading
from dataclasses import replace

import pytest
from molecule_files import SMILES, files_in, refuse_to_prepare, write_csv, write_tox21

from equipool.experiments.data import using_data_folder
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.molecules.data import (
    CsvSource,
    RandomSplit,
    featurize,
    load,
    load_molecules,
)


class Interrupted(Exception):  # noqa: N818 - what it is
    pass


class TestInterruption:
    """A file is complete or absent, and one process prepares it at a time."""

    @pytest.fixture
    def interrupt(self, monkeypatch):
        """Preparing is interrupted in the second chunk."""
        original, calls = featurize.featurize, []

        def failing(*arguments):
            calls.append(None)
            if len(calls) > 1:
                raise Interrupted
            return original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(featurize, "featurize", failing)
            yield patch

    @pytest.mark.parametrize("before", [True, False])
    def test_an_interruption_leaves_what_was_there(self, folder, request, before):
        if before:
            load_molecules("tox21")
            write_tox21(folder, SMILES[:-1])
        files = {path: path.read_bytes() for path in folder.rglob("*.*")}
        interrupt = request.getfixturevalue("interrupt")
        with pytest.raises(Interrupted):
            load_molecules("tox21")
        assert {path: path.read_bytes() for path in folder.rglob("*.*")} == files
        interrupt.undo()
        assert len(load_molecules("tox21", folder)) == len(SMILES) - before

    @pytest.mark.parametrize("before", [True, False])
    def test_a_full_disk_leaves_nothing_unfinished(self, folder, monkeypatch, before):
        path = folder / "molecules" / "tox21.safetensors"
        if before:
            load_molecules("tox21")
            write_tox21(folder, SMILES[:-1])
        content = path.read_bytes() if before else None

        def refuse(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("equipool.experiments.molecules.data.cache.os.fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            load_molecules("tox21")
        assert (path.read_bytes() if path.exists() else None) == content
        assert files_in(folder / "molecules") == (["tox21.safetensors"] if before else [])

    def test_a_broken_table_leaves_no_files(self, folder, cache):
        (folder / "mine.csv").write_text("smiles,A\nCC,high\n")
        with pytest.raises(ValueError, match="1 broken row"):
            load_molecules(CsvSource(folder / "mine.csv"))
        assert not cache.exists()

    def test_remains_of_a_killed_process_are_removed(self, folder):
        left = folder / "molecules" / ".tox21.partial"
        left.mkdir(parents=True)
        (left / "atoms").write_bytes(b"half of it")
        (left / "tox21.safetensors").write_bytes(b"half of it")
        (folder / "molecules" / "tox21.lock").touch()
        assert len(load_molecules("tox21")) == len(SMILES)
        assert files_in(folder / "molecules") == ["tox21.safetensors"]

    def test_a_process_that_waited_uses_the_other_s_file(self, folder, monkeypatch):
        elsewhere = folder.parent / "elsewhere"
        shutil.copytree(folder, elsewhere)
        load_molecules("tox21", elsewhere)
        original = load._locked

        def locked(path):
            shutil.copy(elsewhere / "molecules" / "tox21.safetensors", path.parent)
            return original(path)

        monkeypatch.setattr(load, "_locked", locked)
        refuse_to_prepare(monkeypatch)
        assert len(load_molecules("tox21")) == len(SMILES)

    def test_one_process_at_a_time(self, tmp_path, monkeypatch):
        """Also for one that waits while the lock file is removed."""
        waiting, entered = threading.Event(), threading.Event()
        monkeypatch.setattr(load, "print_status", lambda text: waiting.set())

        def other():
            with load._locked(tmp_path / "lock"):
                entered.set()
                assert (tmp_path / "lock").exists()

        thread = threading.Thread(target=other)
        with load._locked(tmp_path / "lock"):
            thread.start()
            assert waiting.wait(timeout=30)
            assert not entered.is_set()
        thread.join(timeout=30)
        assert entered.is_set()
        assert files_in(tmp_path) == []


class TestFolders:
    """Where caches go: copies of private tables go to a shared folder only if it is chosen."""

    @pytest.fixture
    def mine(self, tmp_path):
        """A source that only its owner can read."""
        path = tmp_path / "private" / "mine.csv"
        path.parent.mkdir()
        write_csv(path, ["smiles", "A"], [["CC", 0], ["C1CC", 1], ["CO", 1]])
        path.chmod(0o600)
        return CsvSource(path, split=RandomSplit())

    @pytest.mark.parametrize("by_task", [False, True])
    def test_a_private_table_is_not_copied_to_the_shared_folder(
        self, folder, cache, mine, capsys, monkeypatch, by_task
    ):
        before = files_in(folder)
        if by_task:
            assert MoleculeTask(csv=str(mine.path), split="random").facts()["labels"] == ["A"]
        else:
            load_molecules(mine)
        assert files_in(folder) == before
        (made,) = cache.glob("mine-*.safetensors")
        assert f"mine.csv: prepared molecules saved to {made}\n" in capsys.readouterr().err
        for file in cache.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
        refuse_to_prepare(monkeypatch)
        load_molecules(mine)
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize("how", ["argument", "command", "task"])
    @pytest.mark.parametrize("shared", [False, True])
    def test_a_chosen_folder_takes_private_tables(
        self, folder, cache, mine, tmp_path, monkeypatch, how, shared
    ):
        """Also if EQUIPOOL_DATA names the same folder."""
        chosen = tmp_path / "chosen"
        if shared:
            monkeypatch.setenv("EQUIPOOL_DATA", str(chosen))
        if how == "argument":
            load_molecules(mine, chosen)
        with using_data_folder(chosen if how != "argument" else None):
            if how == "command":
                load_molecules(mine)
            if how == "task":
                MoleculeTask(csv=str(mine.path), split="random").facts()
        assert len(list((chosen / "molecules").glob("mine-*.safetensors"))) == 1
        assert not cache.exists()

    def test_a_read_only_choice_falls_back_to_the_user_s_cache(self, folder, cache, mine, tmp_path):
        (tmp_path / "chosen").mkdir(mode=0o555)
        load_molecules(mine, tmp_path / "chosen")
        assert len(list(cache.glob("mine-*.safetensors"))) == 1
        assert not (folder / "molecules").exists()

    def test_tables_and_settings_have_files_of_their_own(self, folder, cache, mine, tmp_path):
        (tmp_path / "other").mkdir()
        other = write_csv(tmp_path / "other" / "mine.csv", ["smiles", "A"], [["C", 0]])
        sources = [mine, replace(mine, kind="regression"), CsvSource(other, split=RandomSplit())]
        loaded = [load_molecules(source) for source in sources]
        assert [found.kind == "regression" for found in loaded] == [False, True, False]
        assert [len(found) for found in loaded] == [2, 2, 1]
        assert len(list(cache.glob("mine-*.safetensors"))) == 3

    def test_a_read_only_data_folder(self, folder, cache, tmp_path, monkeypatch):
        """The file goes to the folder of EQUIPOOL_DATA, or else to the user's cache folder."""
        shared = tmp_path / "shared"
        shutil.copytree(folder, shared)
        shared.chmod(0o555)
        load_molecules("tox21", shared)
        assert (folder / "molecules" / "tox21.safetensors").exists()
        assert files_in(shared) == ["tox21.csv.gz"]

        monkeypatch.setenv("EQUIPOOL_DATA", str(shared))
        load_molecules("tox21")
        assert (cache / "tox21.safetensors").exists()
        refuse_to_prepare(monkeypatch)
        load_molecules("tox21")
        with using_data_folder(shared):
            load_molecules("tox21")

    def test_no_folder_can_be_written(self, folder, monkeypatch):
        monkeypatch.setattr(load, "_is_writable", lambda folder: False)
        with pytest.raises(PermissionError, match="--data-dir"):
            load_molecules("tox21")
