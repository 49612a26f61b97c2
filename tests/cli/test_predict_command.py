"""`equipool predict` of molecules: a row for each, whatever becomes of it."""

import csv
import gzip
import io
import shutil

import pytest
import torch

import molecule_table
from commands import call
from equipool.experiments.common import using_data_folder
from equipool.experiments.molecules.features import featurise
from equipool.experiments.molecules.predictor import MoleculePredictor
from equipool.experiments.molecules.task import predict as outputs
from equipool.training import load_network

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

BROKEN = "C1CC"
ASKED = ["CCO", "[Na+].[Cl-]", BROKEN, "C", "CCO", "", "C" * 300, "c1ccoc1CC"]
UNREAD = [2, 5]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table and two runs: `classes` of one label, `numbers` of two."""
    folder = tmp_path_factory.mktemp("predict")
    table = folder / "table.csv"
    molecule_table.write_table(table)
    flags = molecule_table.flags_for(table) | {"--data-dir": folder / "data"}
    for name, labels in (("classes", "oxygen"), ("numbers", "weight,oxygen")):
        given = flags | {"--labels": labels, "--out": folder / name, "--learning-rate": "0.03"}
        call("train", "molecules", given)
    return folder


@pytest.fixture
def predict(place):
    """`equipool predict` of a run, with these arguments."""
    return lambda run, *words, **more: call("predict", place / run, *words, **more)


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def network_of(place, run):
    with using_data_folder(place / "data"):
        return load_network(place / run).eval()


def test_each_row_is_its_molecule_alone(place, predict):
    done = predict("classes", *(word for one in ASKED for word in ("--smiles", one)))
    heading, *rows = rows_of(done.stdout)
    assert heading == ["smiles", "oxygen"]
    assert [row[0] for row in rows] == ASKED
    network = network_of(place, "classes")
    for number, (smiles, cell) in enumerate(rows):
        assert (cell == "") == (number in UNREAD)
        if cell:
            expected = outputs(network, featurise([smiles]).molecules)[0, 0].sigmoid()
            assert float(cell) == pytest.approx(float(expected), rel=1e-5)
    assert f"row 2: '{BROKEN}': unclosed ring" in done.stderr
    assert "2 of 8 molecules could not be read" in done.stderr


def test_numbers_are_in_the_labels_units(place, predict):
    rows = rows_of(predict("numbers", "--smiles", "CCO", "--smiles", "CCCC").stdout)
    assert rows[0] == ["smiles", "weight", "oxygen"]
    weights = torch.tensor([
        12.5 * len(molecule) - 3000
        for number, molecule in enumerate(molecule_table.MOLECULES)
        if molecule_table.PARTS[number % 5] == "train"
    ])  # fmt: skip
    network = network_of(place, "numbers")
    network.units = torch.nn.Identity()
    for smiles, weight, _ in rows[1:]:
        standard = outputs(network, featurise([smiles]).molecules)[0, 0]
        expected = weights.mean() + weights.std(correction=0) * standard
        assert float(weight) == pytest.approx(float(expected), rel=1e-5)


def test_columns_can_be_kept_and_chosen(place, predict, tmp_path):
    predict("classes", place / "table.csv", "--out", tmp_path / "new" / "out.csv")
    rows = rows_of((tmp_path / "new" / "out.csv").read_text())
    assert [row[0] for row in rows] == ["smiles", *molecule_table.MOLECULES]
    table = tmp_path / "others.csv.gz"
    content = f'name,molecule,oxygen\n"a, b",CCO,1\nc,{BROKEN},\n\n001," CC ",0\n'
    table.write_bytes(gzip.compress(content.encode()))
    done = predict("classes", table, "--column", "molecule", "--keep", "name,oxygen")
    heading, *rows = rows_of(done.stdout)
    assert heading == ["name", "given oxygen", "smiles", "oxygen"]
    expected = [["a, b", "1", "CCO"], ["c", "", BROKEN], ["001", "0", " CC "]]
    assert [row[:3] for row in rows] == expected
    assert [row[3] == "" for row in rows] == [False, True, False]


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["table.csv", "--smiles", "C"], 2, "either --smiles or a FILE"),
        (["table.csv", "--out", "table.csv"], 2, "which is the input"),
        (["table.csv", "--out", "table.xlsx"], 1, "expected the ending .csv"),
        (["table.csv", "--column", "molecule"], 1, "no column 'molecule': its columns are 'struct"),
        (["--smiles", BROKEN], 1, "1 of 1 molecules could not be read"),
        (["broken.csv"], 1, "broken.csv, line 3"),
    ],
)
def test_wrong_use_is_named(place, predict, monkeypatch, tmp_path, words, status, expected):
    monkeypatch.chdir(tmp_path)
    shutil.copy(place / "table.csv", "table.csv")
    tmp_path.joinpath("broken.csv").write_text("structure,name\nCCO,a\nCC\n")
    before = (tmp_path / "table.csv").read_text()
    done = predict("classes", *words, status=status)
    assert expected in " ".join(done.stderr.split())
    assert (tmp_path / "table.csv").read_text() == before


def test_what_fails_halfway_leaves_what_was_there(predict, tmp_path, monkeypatch):
    def failing(self, smiles):
        raise ValueError("out of memory")

    monkeypatch.setattr(MoleculePredictor, "predict", failing)
    out = tmp_path / "out.csv"
    out.write_text("old")
    predict("classes", "--smiles", "C", "--out", out, status=1)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_the_runs_directory_is_all_that_is_read(place, predict, tmp_path, monkeypatch):
    expected = predict("numbers", "--smiles", "CCO").stdout
    shutil.copytree(place / "numbers", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("equipool.experiments.molecules.task.load_molecules", None)
        done = call("predict", "moved", "--smiles", "CCO")
    assert done.stdout == expected
