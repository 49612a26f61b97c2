"""Prepared data sets: one file, complete or absent, in the right folder, and read without RDKit."""

import shutil
import subprocess
import sys

import pytest
import torch

from equipool.experiments.molecules.prepare import TENSORS, load_molecules
from equipool.experiments.molecules.sources import SmilesTable
from equipool.experiments.molecules.task import TrainingData

TABLE = "smiles,NR-AR\nCC,0\nC1CC,1\nCCO,1\nCN,\n"


@pytest.fixture
def mine(tmp_path):
    """A table that only its owner can read."""
    path = tmp_path / "private" / "mine.csv"
    path.parent.mkdir()
    path.write_text(TABLE)
    path.chmod(0o600)
    return SmilesTable(path, split="random")


@pytest.fixture
def qm9(folder):
    """The file of a public data set in the data folder."""
    labels = "mu,alpha,homo,lumo,gap,r2,zpve,u0,u298,h298,g298,cv"
    rows = "\n".join(f"{'C' * n},{','.join([str(n)] * 12)}" for n in range(1, 11))
    path = folder / "qm9.csv"
    path.write_text(f"smiles,{labels}\n{rows}\n")
    return path


@pytest.fixture
def no_preparation(monkeypatch):
    """Preparing anything fails."""

    def refuse(self):
        raise AssertionError(f"{self.path} is read again")

    return lambda: monkeypatch.setattr(SmilesTable, "read", refuse)


def test_a_data_set_is_prepared_once(qm9, folder, cache, no_preparation, capsys):
    before = load_molecules("qm9")
    assert "8 train, 1 valid, 1 test" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["qm9.csv"]
    no_preparation()
    for _ in range(2):
        after = load_molecules("qm9")
        for name in TENSORS:
            found, expected = getattr(after.molecules, name), getattr(before.molecules, name)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert after.molecules.label_names == before.molecules.label_names
        assert (after.molecules.kind, after.fingerprint) == ("regression", before.fingerprint)
        qm9.unlink(missing_ok=True)  # the prepared file is enough
    cache.rename(folder / "molecules")  # where it may be shared
    assert load_molecules("qm9").fingerprint == before.fingerprint
    assert capsys.readouterr().err == ""


def test_a_changed_source_or_a_damaged_file_is_prepared_again(qm9, cache):
    load_molecules("qm9")
    path = cache / "qm9.safetensors"
    intact = path.read_bytes()
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    assert len(load_molecules("qm9").molecules) == 10
    assert path.read_bytes() == intact
    with qm9.open("a") as table:
        table.write(f"CO,{','.join(['0'] * 12)}\n")
    assert len(load_molecules("qm9").molecules) == 11
    path.write_bytes(intact[:100])
    qm9.unlink()
    with pytest.raises(ValueError, match=r"qm9.safetensors is .*damaged"):
        load_molecules("qm9")


def test_a_private_table_stays_private(mine, folder, cache, capsys, no_preparation):
    load_molecules(mine)
    assert "row 1: 'C1CC': unclosed ring" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    (path,) = cache.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    other = SmilesTable(mine.path, split="random", kind="regression")
    assert load_molecules(other).molecules.kind == "regression"
    no_preparation()
    (problem,) = load_molecules(mine).problems
    assert (problem.row, problem.smiles, problem.kept) == (1, "C1CC", False)


def test_training_molecules_are_required(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("smiles,A,s\nCC,0,test\nCO,1,valid\n")
    with pytest.raises(ValueError, match="none of the 0 training molecules has a label"):
        TrainingData(SmilesTable(table, labels=("A",), split="s"))


def test_what_is_missing_is_named(folder):
    missing = folder / "molpcba" / "raw" / "num-node-list.csv.gz"
    missing.parent.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=f"(?s)no {missing}.*--data-dir"):
        load_molecules("molpcba")


def test_training_needs_neither_rdkit_nor_ogb(mine, tmp_path):
    """A GPU machine may have neither; the table and the prepared file are copied to it."""
    load_molecules(mine)
    shutil.copy(mine.path, tmp_path / "mine.csv")
    code = f"""
import sys
sys.modules |= dict.fromkeys(["rdkit", "ogb", "torch_geometric"])  # None: importing them fails
from equipool.experiments.molecules.task import MoleculeTask
from equipool.training import TrainingConfig, train
task = MoleculeTask("sum", csv={str(tmp_path / "mine.csv")!r}, split="random", batch_size=2,
                    width=4, depth=2)
train(task, TrainingConfig(steps=2), {str(tmp_path / "run")!r}, device="cpu")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
