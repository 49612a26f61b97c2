"""The file of a data set that was prepared: what it serves for, and when it is made again."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from molecule_files import ODD, files_in, write_csv
from tox21_table import SMILES, TOX21, refuse_to_prepare, write_table

from equipool.experiments.download import MissingDataError
from equipool.experiments.molecules.data import (
    CsvSource,
    MoleculeSet,
    RandomSplit,
    load_molecules,
    load_problems,
)
from equipool.experiments.molecules.data.checked_file import check, read_about


def same(first, second):
    for field in fields(MoleculeSet):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)), field.name
        elif field.name != "split":
            assert one == other
    assert all(torch.equal(first.split[part], second.split[part]) for part in first.split)


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
    monkeypatch.setattr("equipool.experiments.molecules.data.features.VERSION", 2)
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


def test_problems_that_other_versions_found_are_told_so(folder, monkeypatch, capsys):
    """The file serves all the same."""
    versions = {"ogb": "1.2", "rdkit": "2020.9"}
    write_table(folder, [*ODD, "C1CC"])
    with monkeypatch.context() as patch:
        patch.setattr("equipool.experiments.molecules.data.extras.version", versions.get)
        problems = load_problems("tox21")
        assert "was made with" not in capsys.readouterr().err
    path = folder / "molecules" / "tox21.safetensors"
    assert read_about(path)["made_with"] == versions
    refuse_to_prepare(monkeypatch)
    versions["rdkit"] = "2021.3"
    monkeypatch.setattr("equipool.experiments.molecules.data.extras.version", versions.get)
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
from equipool.experiments.molecules.data import load_molecules
molecules = load_molecules("tox21")
assert len(molecules) == {len(SMILES)}
assert molecules.label_names[0] == "NR-AR"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_preparing_says_what_must_be_installed(folder, monkeypatch):
    monkeypatch.setattr(
        "equipool.experiments.molecules.data.extras.NEEDED", ("rdkit", "no_such_module")
    )
    with pytest.raises(ImportError, match=r"needs no_such_module. .*equipool\[molecules\]"):
        load_molecules("tox21")
