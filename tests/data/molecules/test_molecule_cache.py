import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager
from dataclasses import fields

import pytest
import torch
from molecule_files import ODD, files_in, write_csv
from safetensors.torch import load_file

from equipool.data.download import MissingDataError
from equipool.data.folder import using_data_folder
from equipool.data.molecules import (
    CsvSource,
    MoleculeSet,
    RandomSplit,
    load_molecules,
    load_problems,
    loading,
)
from equipool.data.molecules import featurising as featurising_module
from equipool.data.molecules.cache import write_cache
from equipool.data.molecules.checked_file import (
    Stream,
    UnusableFileError,
    check,
    read_about,
    read_tensors,
    write_checked,
)
from equipool.data.molecules.locking import alone

SMILES = [*ODD] * 30  # more than a batch
TOX21 = ["NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma",
         "SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with a table, and a user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    write_table(tmp_path / "data", SMILES)
    return tmp_path / "data"


def write_table(folder, smiles):
    rows = [[text, *(["1", "0", ""] * 4)] for text in smiles]
    return write_csv(folder / "tox21.csv.gz", ["smiles", *TOX21], rows)


def same(first, second):
    for field in fields(MoleculeSet):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)), field.name
        elif field.name != "split":
            assert one == other
    assert all(torch.equal(first.split[part], second.split[part]) for part in first.split)


def refuse_to_prepare(monkeypatch):
    def refuse(source, path):
        raise AssertionError(f"{path} is made again")

    monkeypatch.setattr(loading, "prepare", refuse)


def test_the_second_time_the_file_is_read(folder, monkeypatch):
    first = load_molecules("tox21")
    assert files_in(folder) == [
        "molecules",
        "molecules/tox21.lock",
        "molecules/tox21.safetensors",
        "tox21.csv.gz",
    ]
    refuse_to_prepare(monkeypatch)
    same(load_molecules("tox21"), first)


def test_the_file_serves_without_its_source(folder, monkeypatch):
    first = load_molecules("tox21")
    (folder / "tox21.csv.gz").unlink()
    refuse_to_prepare(monkeypatch)
    same(load_molecules("tox21"), first)


def test_a_source_that_has_changed_is_prepared_again(folder, capsys):
    load_molecules("tox21")
    write_table(folder, SMILES[:-1])
    assert len(load_molecules("tox21")) == len(SMILES) - 1
    assert "is of another source or recipe: it is made again" in capsys.readouterr().err


def test_a_change_that_leaves_size_and_time_is_seen(folder):
    (folder / "tox21.csv.gz").unlink()
    table = folder / "tox21.csv"
    write_csv(table, ["smiles", *TOX21], [[smiles, *[0] * 12] for smiles in ODD])
    before = table.stat()
    assert load_molecules("tox21").labels.sum() == 0
    write_csv(table, ["smiles", *TOX21], [[smiles, *[1] * 12] for smiles in ODD])
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (table.stat().st_size, table.stat().st_mtime) == (before.st_size, before.st_mtime)
    assert load_molecules("tox21").labels.sum() == 12 * len(ODD)


def test_other_features_are_prepared_again(folder, monkeypatch, capsys):
    load_molecules("tox21")
    monkeypatch.setattr("equipool.data.molecules.features.VERSION", 2)
    load_molecules("tox21")
    assert "of another version: expected format 1 and features 2, found 1 and 1" in (
        capsys.readouterr().err
    )
    refuse_to_prepare(monkeypatch)
    load_molecules("tox21")


def test_users_tables_have_files_of_their_own(folder):
    table = write_csv(folder / "mine.csv", ["smiles", "A", "B"], [["CC", 0, 1], ["CO", 1, 0]])
    (folder / "other").mkdir()
    write_csv(folder / "other" / "mine.csv", ["smiles", "A", "B"], [["C", 0, 1]])
    sources = [
        CsvSource(table, labels=("A",), split=RandomSplit()),
        CsvSource(table, labels=("B",), split=RandomSplit()),
        CsvSource(folder / "other" / "mine.csv", labels=("A",), split=RandomSplit()),
    ]
    loaded = [load_molecules(source) for source in sources]
    assert [found.label_names for found in loaded] == [("A",), ("B",), ("A",)]
    assert [len(found) for found in loaded] == [2, 2, 1]
    made = sorted(path.name for path in folder.rglob("*.safetensors"))
    assert len(made) == 3
    assert all(name.startswith("mine-") for name in made)


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "empty":
        content = b""
    elif how == "cut":
        content = content[:-1]
    elif how == "longer":
        content += b"\0"
    else:
        at = {"length": 3, "header": 20, "first": 8 + int.from_bytes(content[:8], "little")}
        content[at.get(how, len(content) - 1)] ^= 0xFF
    path.write_bytes(content)


each_damage = pytest.mark.parametrize(
    "how", ["empty", "cut", "longer", "length", "header", "first", "last"]
)


@each_damage
def test_a_damaged_file_is_made_again(folder, capsys, how):
    first = load_molecules("tox21")
    path = folder / "molecules" / "tox21.safetensors"
    first = first.select(torch.arange(len(first)))  # out of the file's memory
    damage(path, how)
    same(load_molecules("tox21"), first)
    assert f"{path} is damaged" in capsys.readouterr().err
    check(path)


@each_damage
def test_a_damaged_file_without_its_source_is_refused(folder, how):
    load_molecules("tox21")
    path = folder / "molecules" / "tox21.safetensors"
    (folder / "tox21.csv.gz").unlink()
    damage(path, how)
    with pytest.raises(MissingDataError) as raised:
        load_molecules("tox21")
    assert f"{path} is damaged" in str(raised.value)
    assert "Tox21, 7,831 molecules in 12 assays is not there" in str(raised.value)


def test_nothing_there_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, words in {
        "molhiv": ["ogbg_molhiv", "molhiv.csv.gz", "GraphPropPredDataset", "hiv.zip"],
        "molpcba": ["ogbg_molpcba", "GraphPropPredDataset", "pcba.zip"],
        "toxcast": ["toxcast.csv.gz", "toxcast_data.csv.gz"],
        "tox21": ["tox21.csv.gz", "MoleculeNet"],
        "qm9": ["qm9.csv.gz", "MoleculeNet"],
    }.items():
        with pytest.raises(MissingDataError) as raised:
            load_molecules(name, tmp_path / "nowhere")
        for word in [*words, str(tmp_path / "nowhere"), "--data-dir", "EQUIPOOL_DATA"]:
            assert word in str(raised.value)
    with pytest.raises(ValueError, match="unknown data set 'tox22': expected one of molhiv"):
        load_molecules("tox22")
    with pytest.raises(MissingDataError, match=r"mine\.csv is not there"):
        load_molecules(CsvSource(tmp_path / "mine.csv"))
    assert files_in(tmp_path) == []


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
        patch.setattr("equipool.data.molecules.checked_file.os.fsync", refuse)
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
    monkeypatch.setattr("equipool.data.molecules.locking.say", lambda text: waiting.set())

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
    monkeypatch.setattr("equipool.data.molecules.places._can_be_written", lambda place: False)
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


def test_problems_that_other_versions_found_are_told_so(folder, monkeypatch, capsys):
    """The file serves all the same."""
    versions = {"ogb": "1.2", "rdkit": "2020.9"}
    write_table(folder, [*ODD, "C1CC"])
    with monkeypatch.context() as patch:
        patch.setattr("equipool.data.molecules.extras.version", versions.get)
        problems = load_problems("tox21")
        assert "was made with" not in capsys.readouterr().err
    path = folder / "molecules" / "tox21.safetensors"
    assert read_about(path)["made_with"] == versions
    refuse_to_prepare(monkeypatch)
    versions["rdkit"] = "2021.3"
    monkeypatch.setattr("equipool.data.molecules.extras.version", versions.get)
    assert load_problems("tox21") == problems
    said = f"{path} was made with rdkit 2020.9 (here: 2021.3): the problems are those of then\n"
    assert capsys.readouterr().err == said


@pytest.mark.processes
def test_the_file_is_read_without_ogb_and_rdkit(folder):
    load_molecules("tox21")
    (folder / "tox21.csv.gz").unlink()
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["ogb", "rdkit", "pandas", "sklearn", "rich"]))
from equipool.data.molecules import load_molecules
molecules = load_molecules("tox21")
assert len(molecules) == {len(SMILES)}
assert molecules.label_names[0] == "NR-AR"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_preparing_says_what_must_be_installed(folder, monkeypatch):
    monkeypatch.setattr("equipool.data.molecules.extras.NEEDED", ("rdkit", "no_such_module"))
    with pytest.raises(ImportError, match=r"needs no_such_module. .*equipool\[molecules\]"):
        load_molecules("tox21")


def small_file(path):
    tensors = {
        "bytes": Stream("U8", (5,), [bytes([1, 2]), bytes([3, 4, 5])]),
        "numbers": Stream("I64", (2, 1), [(7).to_bytes(8, "little"), (8).to_bytes(8, "little")]),
        "none": Stream("F32", (0, 3), []),
    }
    write_checked(path, {"what": "é"}, tensors)
    return path


def test_a_checked_file_is_a_file_of_safetensors(tmp_path):
    path = small_file(tmp_path / "small")
    check(path)
    assert read_about(path) == {"what": "é"}
    for read in (read_tensors, load_file):
        found = read(path)
        assert set(found) == {"bytes", "numbers", "none"}
        assert found["bytes"].tolist() == [1, 2, 3, 4, 5]
        assert found["numbers"].tolist() == [[7], [8]]
        assert found["none"].shape == (0, 3)


def test_tensors_are_aligned(tmp_path):
    content = small_file(tmp_path / "small").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header["numbers"]["data_offsets"] == [0, 16]
    assert header["none"]["data_offsets"] == [16, 16]
    assert header["bytes"]["data_offsets"] == [16, 21]


def test_every_damaged_byte_is_found(tmp_path):
    path = small_file(tmp_path / "small")
    content = path.read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(UnusableFileError, match="is damaged"):
            check(path)


def test_every_cut_is_found(tmp_path):
    path = small_file(tmp_path / "small")
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UnusableFileError, match="is damaged"):
            check(path)


def test_a_tensor_that_is_not_of_its_shape_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected 3 bytes by their shapes, found 2"):
        write_checked(tmp_path / "small", {}, {"bytes": Stream("U8", (3,), [b"ab"])})
