"""Cache files: their content and checksum, and when they are read or rebuilt."""

import os
import random
import subprocess
import sys
import weakref
from dataclasses import fields

import pytest
import torch
from molecule_files import ODD, SMILES, TOX21, files_in, refuse_to_prepare, write_csv, write_tox21
from safetensors.torch import load_file

from equipool.experiments.data import MissingDataError
from equipool.experiments.molecules.data import (
    CsvSource,
    MoleculeSet,
    RandomSplit,
    load_molecules,
    load_problems,
)
from equipool.experiments.molecules.data.cache import MoleculeCache, UnusableFileError, write_cache


def same(first, second):
    for field in fields(MoleculeSet):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)), field.name
        elif field.name != "split":
            assert one == other
    assert all(torch.equal(first.split[part], second.split[part]) for part in first.split)


class TestFile:
    """What a cache file contains, and which damage is noticed."""

    @pytest.fixture
    def small(self, tmp_path):
        """A cache of a few molecules, one of which RDKit rejects."""
        table = write_csv(tmp_path / "é.csv", ["smiles", "A"], [["CO", 0], ["C1CC", 1], ["C", ""]])
        source = CsvSource(table, split=RandomSplit(train=1.0, valid=0.0))
        contents = source.examine()
        (tmp_path / "scratch").mkdir()
        path = tmp_path / "small.safetensors"
        write_cache(path, tmp_path / "scratch", source, contents, source.chunks(contents))
        return path

    def test_it_is_a_safetensors_file(self, small):
        cache = MoleculeCache(small)
        cache.check()
        assert cache.about["label_names"] == ["A"]
        assert cache.about["source"]["files"][0]["name"] == "é.csv"
        tensors = load_file(small)
        assert tensors["num_atoms"].tolist() == [2, 1]
        assert tensors["ends"].tolist() == [[0, 1], [1, 0]]
        assert tensors["labels"].tolist() == [[0], [255]]
        molecules = cache.molecules()
        assert molecules.ends.tolist() == [[0, 1], [1, 0]]
        assert molecules.labels.nan_to_num(7).tolist() == [[0], [7]]
        assert [problem.smiles for problem in cache.problems()] == ["C1CC"]
        assert cache.part_sizes() == {"train": 2, "valid": 0, "test": 0}

    def test_damage_is_noticed(self, small):
        content = small.read_bytes()
        for at in range(random.randrange(5), len(content), 5):
            damaged = bytearray(content)
            damaged[at] ^= 1 << (at % 8)
            for changed in (damaged, content[:at]):
                small.write_bytes(changed)
                with pytest.raises(UnusableFileError):
                    MoleculeCache(small).check()

    def test_chunks_are_not_kept_in_memory(self, folder, tmp_path):
        """When a chunk is asked for, the one before the last is no longer in memory."""
        source = CsvSource(folder / "tox21.csv.gz")
        contents = source.examine()
        seen = []

        def watched():
            for chunk in source.chunks(contents):
                assert all(earlier() is None for earlier in seen[:-1])
                seen.append(weakref.ref(chunk))
                yield chunk
                del chunk

        write_cache(tmp_path / "file", tmp_path, source, contents, watched())
        assert len(seen) > 1
        assert seen[-1]() is None

    def test_tensors_are_mapped_when_they_are_written(self, folder, tmp_path, monkeypatch):
        """Their memory is that of the growing files, which the system can drop."""
        mapped = []
        original = torch.from_file

        def from_file(name, **options):
            mapped.append(options["size"])
            return original(name, **options)

        monkeypatch.setattr(torch, "from_file", from_file)
        source = CsvSource(folder / "tox21.csv.gz")
        contents = source.examine()
        write_cache(tmp_path / "file", tmp_path, source, contents, source.chunks(contents))
        sizes = [tensor.numel() for tensor in load_file(tmp_path / "file").values()]
        assert sorted(mapped) == sorted(size for size in sizes if size)


class TestReuse:
    """When a cache is read, and when it is prepared again."""

    @pytest.mark.parametrize("there", [True, False])
    def test_the_second_time_the_file_is_read(self, folder, monkeypatch, there):
        """The source is not needed then."""
        first = load_molecules("tox21")
        assert files_in(folder) == ["molecules", "molecules/tox21.safetensors", "tox21.csv.gz"]
        if not there:
            (folder / "tox21.csv.gz").unlink()
        refuse_to_prepare(monkeypatch)
        same(load_molecules("tox21"), first)

    def test_a_changed_source_is_prepared_again(self, folder, capsys):
        load_molecules("tox21")
        write_tox21(folder, SMILES[:-1])
        assert len(load_molecules("tox21")) == len(SMILES) - 1
        assert "from another source or recipe: preparing it again" in capsys.readouterr().err

    def test_a_change_that_keeps_size_and_time_is_noticed(self, folder):
        (folder / "tox21.csv.gz").unlink()
        table = folder / "tox21.csv"
        write_csv(table, ["smiles", *TOX21], [[smiles, *[0] * 12] for smiles in ODD])
        before = table.stat()
        assert load_molecules("tox21").labels.sum() == 0
        write_csv(table, ["smiles", *TOX21], [[smiles, *[1] * 12] for smiles in ODD])
        os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (table.stat().st_size, table.stat().st_mtime) == (before.st_size, before.st_mtime)
        assert load_molecules("tox21").labels.sum() == 12 * len(ODD)

    def test_other_features_are_prepared_again(self, folder, monkeypatch, capsys):
        load_molecules("tox21")
        monkeypatch.setattr("equipool.experiments.molecules.data.featurize.FEATURES_VERSION", 2)
        load_molecules("tox21")
        assert "expected format 2 and features 2, found 2 and 1" in capsys.readouterr().err
        refuse_to_prepare(monkeypatch)
        load_molecules("tox21")

    @pytest.mark.parametrize("how", ["empty", "cut", "longer", "length", "header", "first", "last"])
    def test_a_damaged_file_is_rebuilt_or_named(self, folder, capsys, how):
        first = load_molecules("tox21")
        path = folder / "molecules" / "tox21.safetensors"
        first = first.select(torch.arange(len(first)))  # a copy: the file's memory will change
        damage(path, how)
        same(load_molecules("tox21"), first)
        assert f"{path} is damaged" in capsys.readouterr().err
        MoleculeCache(path).check()
        (folder / "tox21.csv.gz").unlink()
        damage(path, how)
        with pytest.raises(MissingDataError) as raised:
            load_molecules("tox21")
        assert f"{path} is damaged" in str(raised.value)
        assert "Tox21, 7,831 molecules in 12 assays: not found" in str(raised.value)

    def test_missing_data_is_explained(self, tmp_path):
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
        with pytest.raises(MissingDataError, match=r"mine\.csv does not exist"):
            load_molecules(CsvSource(tmp_path / "mine.csv"))
        assert files_in(tmp_path) == []

    def test_problems_found_with_other_versions_are_noted(self, folder, monkeypatch, capsys):
        versions = {"ogb": "1.2", "rdkit": "2020.9"}
        write_tox21(folder, [*ODD, "C1CC"])
        version = "equipool.experiments.molecules.data.featurize.version"
        with monkeypatch.context() as patch:
            patch.setattr(version, versions.get)
            problems = load_problems("tox21")
            assert "was prepared with" not in capsys.readouterr().err
        path = folder / "molecules" / "tox21.safetensors"
        assert MoleculeCache(path).about["made_with"] == versions
        refuse_to_prepare(monkeypatch)
        versions["rdkit"] = "2021.3"
        monkeypatch.setattr(version, versions.get)
        assert load_problems("tox21") == problems
        assert "was prepared with rdkit 2020.9 (now 2021.3)" in capsys.readouterr().err

    @pytest.mark.processes
    def test_the_file_is_read_without_ogb_and_rdkit(self, folder):
        load_molecules("tox21")
        (folder / "tox21.csv.gz").unlink()
        code = f"""
import sys
sys.modules.update(dict.fromkeys(["ogb", "rdkit", "pandas", "sklearn", "rich", "filelock._api"]))
from equipool.experiments.molecules.data import load_molecules
molecules = load_molecules("tox21")
assert len(molecules) == {len(SMILES)}
assert molecules.label_names[0] == "NR-AR"
"""
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)

    def test_preparing_names_what_to_install(self, folder, monkeypatch):
        monkeypatch.setattr(
            "equipool.experiments.molecules.data.featurize.REQUIRED", ("rdkit", "no_such_module")
        )
        with pytest.raises(ImportError, match=r"needs no_such_module. .*equipool\[molecules\]"):
            load_molecules("tox21")


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
