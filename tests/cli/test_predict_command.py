"""`equipool predict`: a row for each molecule, whatever becomes of it."""

import csv
import gzip
import io
import json
import os
import shutil
import signal

import pytest
import torch

import molecule_table
from commands import call
from equipool.experiments.data import using_data_folder
from equipool.experiments.molecules import predict_molecules, predictor, storage
from equipool.experiments.molecules.predictor import MoleculePredictor, load_predictor
from equipool.training import load_network

pytest.importorskip("rdkit")
pytest.importorskip("ogb")
from equipool.experiments.molecules.data import molecules_from_smiles

BROKEN = "C1CC"
ASKED = ["CCO", "[Na+].[Cl-]", BROKEN, "C", "CCO", "", "C" * 300, "c1ccoc1CC"]
UNREAD = {2, 5}


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


def alone(place, run, smiles, which="best"):
    """The network's outputs for a molecule that is by itself."""
    molecules, _ = molecules_from_smiles([smiles])
    with using_data_folder(place / "data"):
        network = load_network(place / run, which)
    return predict_molecules(network, molecules, torch.device("cpu"))[0]


def smiles_flags(smiles):
    return [word for one in smiles for word in ("--smiles", one)]


@pytest.mark.parametrize("at_once", [1, 3, 4096])
@pytest.mark.parametrize("in_a_batch", [2, 512])
def test_each_row_is_its_molecule_alone(place, predict, monkeypatch, at_once, in_a_batch):
    monkeypatch.setattr(predictor, "AT_ONCE", at_once)
    monkeypatch.setattr(storage, "MAX_MOLECULES", in_a_batch)
    done = predict("classes", *smiles_flags(ASKED))
    heading, *rows = rows_of(done.stdout)
    assert heading == ["smiles", "oxygen"]
    assert [row[0] for row in rows] == ASKED
    for number, (smiles, cell) in enumerate(rows):
        assert (cell == "") == (number in UNREAD)
        if cell:
            expected = alone(place, "classes", smiles)[0].sigmoid()
            assert float(cell) == pytest.approx(float(expected), rel=1e-5)
    assert f"row 2: '{BROKEN}': unclosed ring" in done.stderr
    assert "row 5: '': empty" in done.stderr
    assert "2 of 8 molecules could not be read" in done.stderr


def test_numbers_are_in_the_labels_units(place, predict):
    rows = rows_of(predict("numbers", "--smiles", "CCO", "--smiles", "CCCC").stdout)
    assert rows[0] == ["smiles", "weight", "oxygen"]
    weights = torch.tensor([
        12.5 * len(molecule) - 3000
        for number, molecule in enumerate(molecule_table.MOLECULES)
        if molecule_table.PARTS[number % 5] == "train"
    ])  # fmt: skip
    with using_data_folder(place / "data"):
        network = load_network(place / "numbers")
    network.units = torch.nn.Identity()
    for smiles, weight, _ in rows[1:]:
        molecules, _ = molecules_from_smiles([smiles])
        standard = predict_molecules(network, molecules, torch.device("cpu"))[0, 0]
        expected = weights.mean() + weights.std(correction=0) * standard
        assert float(weight) == pytest.approx(float(expected), rel=1e-5)
        assert abs(float(weight) + 2900) < 500


def test_a_table_is_read_by_the_column_of_training(place, predict, tmp_path):
    done = predict("classes", place / "table.csv", "--out", tmp_path / "new" / "out.csv")
    assert done.stdout == ""
    rows = rows_of((tmp_path / "new" / "out.csv").read_text())
    assert [row[0] for row in rows] == ["smiles", *molecule_table.MOLECULES]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.csv"]
    for smiles, cell in (rows[1], rows[-1]):
        expected = float(alone(place, "classes", smiles)[0].sigmoid())
        assert float(cell) == pytest.approx(expected, rel=1e-5)


def test_a_table_of_another_column_packed_and_broken(predict, tmp_path):
    table = tmp_path / "others.csv.gz"
    content = f'name,molecule\n"a, b",CCO\nc,{BROKEN}\n\nd," CC "\n'
    table.write_bytes(gzip.compress(content.encode()))
    done = predict("classes", table, "--column", "molecule")
    rows = rows_of(done.stdout)
    assert [row[0] for row in rows] == ["smiles", "CCO", BROKEN, " CC "]
    assert [row[1] == "" for row in rows] == [False, False, True, False]
    assert f"row 1 (line 3): '{BROKEN}': unclosed ring" in done.stderr


@pytest.mark.parametrize("ending", [".smi", ".txt", ".smi.gz", "-"])
def test_a_list_has_one_molecule_a_line(predict, tmp_path, ending):
    content = f"CCO ethanol\n\n{BROKEN}\tname\nC\n"
    file = tmp_path / f"list{ending}"
    packed = gzip.compress(content.encode()) if ending.endswith(".gz") else content.encode()
    file.write_bytes(packed)
    asked = (ending,) if ending == "-" else (file,)
    done = predict("classes", *asked, text=content)
    rows = rows_of(done.stdout)
    assert [row[0] for row in rows] == ["smiles", "CCO", "", BROKEN, "C"]
    assert [bool(row[1]) for row in rows[1:]] == [True, False, False, True]
    assert "row 1 (line 2): '': empty" in done.stderr
    assert f"row 2 (line 3): '{BROKEN}'" in done.stderr


def test_nothing_to_read_is_a_table_of_nothing(predict):
    assert rows_of(predict("numbers", "-", text="").stdout) == [["smiles", "weight", "oxygen"]]


def test_if_nothing_could_be_read_the_command_fails(predict, tmp_path):
    done = predict(
        "numbers", "--smiles", BROKEN, "--smiles", "", "--out", tmp_path / "out.csv", status=1
    )
    assert "none of the 2 molecules could be read" in done.stderr
    assert rows_of((tmp_path / "out.csv").read_text())[1:] == [[BROKEN, "", ""], ["", "", ""]]


@pytest.fixture
def copied(place):
    """The run of `classes` once more, to be changed."""
    folder = place / "copied"
    shutil.copytree(place / "classes", folder)
    yield folder
    shutil.rmtree(folder)


def test_best_and_last_checkpoint(place, predict, copied):
    (copied / "best.json").write_text('{"step": 15}')
    best, last = (alone(place, "copied", "CCO", which) for which in ("best", "last"))
    assert not torch.allclose(best, last)
    for words, expected in (([], best), (["--which", "best"], best), (["--which", "last"], last)):
        cell = rows_of(predict("copied", "--smiles", "CCO", *words).stdout)[1][1]
        assert float(cell) == pytest.approx(float(expected.sigmoid()), rel=1e-5)


def test_what_is_said_of_a_damaged_checkpoint_is_not_in_the_table(predict, copied):
    last = max(copied.glob("checkpoints/*"), key=lambda path: path.name)
    (last / "model.safetensors").write_bytes(b"nothing")
    done = predict("copied", "--smiles", "CCO", "--which", "last")
    assert [row[0] for row in rows_of(done.stdout)] == ["smiles", "CCO"]
    assert "is damaged" in done.stderr


def test_a_bar_is_shown_for_long_inputs_alone(predict, monkeypatch):
    text = "CCO\n" * 5
    assert "5/5" not in predict("classes", "-", text=text).stderr
    monkeypatch.setattr(predictor, "AT_ONCE", 2)
    done = predict("classes", "-", text=text)
    assert "5/5" in done.stderr
    assert len(rows_of(done.stdout)) == 6


def test_a_run_of_another_task_is_refused(equipool, tiny, tmp_path):
    equipool("train", "median", tiny, "--out", tmp_path / "run")
    done = equipool("predict", tmp_path / "run", "--smiles", "CCO", status=1)
    assert f"predict needs a molecules run; {tmp_path / 'run'} is a median run" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        ([], 2, "either a FILE or --smiles"),
        (["table.csv", "--smiles", "C"], 2, "either a FILE or --smiles"),
        (["--smiles", "C", "--which", "first"], 2, "'first' is not one of 'best', 'last'"),
        (["--smiles", "C", "--device", "abacus"], 2, "--device is 'abacus'"),
        (["--smiles", "C", "--out", "."], 2, "--out is ., expected a file"),
        (["table.csv", "--out", "table.csv"], 2, "which is the input"),
        (["table.csv", "--column", "molecule"], 1, "no column 'molecule': its columns are 'struct"),
        (["table.csv", "--column", "molecule"], 1, "; choose the SMILES column with --column"),
        (["list.tsv"], 1, "FILE is 'list.tsv', expected a file that ends in .csv, .smi, .txt"),
        (["list.smi", "--column", "smiles"], 1, "but list.smi has no columns"),
        (["list.smi", "--keep", "a"], 1, "--keep is 'a', but list.smi has no columns"),
        (["--smiles", "C", "--keep", "a"], 2, "--keep requires a FILE with columns"),
        (["table.csv", "--keep", "nothing"], 1, "has no column 'nothing'"),
        (["table.csv", "--keep", "part,part"], 2, "--keep names 'part' twice"),
        (["nothing.csv"], 2, "FILE is 'nothing.csv', which does not exist"),
        (["nothing.smi"], 2, "FILE is 'nothing.smi', which does not exist"),
        (["bytes.smi"], 1, "bytes.smi is not UTF-8 text"),
    ],
)
def test_wrong_use_is_said(place, predict, monkeypatch, tmp_path, words, status, expected):
    monkeypatch.chdir(tmp_path)
    shutil.copy(place / "table.csv", "table.csv")
    for ending in ("smi", "tsv"):
        tmp_path.joinpath(f"list.{ending}").write_text("C\n")
    tmp_path.joinpath("bytes.smi").write_bytes(b"\xff\xfe\xfa")
    before = (tmp_path / "table.csv").read_text()
    done = predict("classes", *words, status=status)
    assert expected in done.stderr
    assert done.stdout == ""
    assert (tmp_path / "table.csv").read_text() == before


def test_columns_can_be_kept(predict, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text('name,structure,note\na,CCO,"x, y"\nb,C1CC,\nc,C,z\n')
    plain = rows_of(predict("classes", table).stdout)
    kept = rows_of(predict("classes", table, "--keep", "note, name").stdout)
    assert [row[:2] for row in kept] == [["note", "name"], ["x, y", "a"], ["", "b"], ["z", "c"]]
    assert [row[2:] for row in kept] == plain


def test_a_label_that_is_kept_stands_beside_what_is_predicted(place, predict):
    heading, first, *_ = rows_of(predict("classes", place / "table.csv", "--keep", "oxygen").stdout)
    assert heading == ["given oxygen", "smiles", "oxygen"]
    assert first[0] == "0"
    assert 0 < float(first[2]) < 1


def test_a_broken_table_leaves_what_was_there(predict, tmp_path):
    table, out = tmp_path / "broken.csv", tmp_path / "out.csv"
    table.write_text("structure,name\nCCO,a\nCC\nC,b,c\n")
    out.write_text("old")
    done = predict("classes", table, "--out", out, status=1)
    assert "broken.csv has 2 broken rows:" in done.stderr
    assert "row 1 (line 3): expected 2 cells, found 1" in done.stderr
    assert out.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"broken.csv", "out.csv"}


def test_what_fails_halfway_leaves_what_was_there(predict, tmp_path, monkeypatch):
    def failing(self, smiles):
        raise ValueError("out of memory")

    monkeypatch.setattr(MoleculePredictor, "predict", failing)
    out = tmp_path / "out.csv"
    out.write_text("old")
    predict("classes", "--smiles", "C", "--out", out, status=1)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_an_interrupted_command_leaves_no_file(predict, tmp_path, monkeypatch):
    """The table is written at once, at the end: until then there is nothing to leave."""

    def ended(self, smiles):
        assert not list(tmp_path.iterdir())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(MoleculePredictor, "predict", ended)
    done = predict("classes", "--smiles", "C", "--out", tmp_path / "out.csv", status=None)
    assert done.exit_code != 0
    assert not list(tmp_path.iterdir())


def test_the_runs_directory_is_all_that_is_read(place, predict, tmp_path, monkeypatch):
    expected = predict("numbers", "--smiles", "CCO").stdout
    moved = tmp_path / "moved"
    shutil.copytree(place / "numbers", moved)
    (place / "table.csv").rename(place / "away.csv")
    (place / "data").rename(place / "away")
    monkeypatch.chdir(tmp_path)
    done = call("predict", "moved", "--smiles", "CCO", status=None)
    (place / "away.csv").rename(place / "table.csv")
    (place / "away").rename(place / "data")
    assert done.exit_code == 0, done.output
    assert done.stdout == expected


def test_a_run_that_does_not_know_its_labels_is_refused(predict, copied):
    config = json.loads((copied / "config.json").read_text())
    del config["data"], config["sha256"]
    (copied / "config.json").write_text(json.dumps(config))
    done = predict("copied", "--smiles", "C", status=1)
    assert "its config.json does not name the labels" in done.stderr


def test_a_data_sets_run_keeps_what_its_training_kept_and_reads_the_usual_column(
    predict, copied, tmp_path
):
    config = json.loads((copied / "config.json").read_text())
    table = {"csv": None, "smiles": None, "labels": None, "split": None, "kind": None}
    config["fields"] |= table | {"dataset": "molhiv"}
    del config["sha256"]
    (copied / "config.json").write_text(json.dumps(config))
    file = tmp_path / "metals.csv"
    file.write_text(f"smiles\nC[Al](C)(C)(C)(C)C\n{BROKEN}\n")
    assert not rows_of(predict("classes", file, "--column", "smiles", status=1).stdout)[1][1]
    done = predict("copied", file)
    assert [bool(row[1]) for row in rows_of(done.stdout)[1:]] == [True, False]
    assert "greater than permitted (predicted nevertheless)" in done.stderr
    assert "1 of 2 molecules could not be read" in done.stderr


def test_from_python(place):
    found = load_predictor(place / "classes", device="cpu").predict(ASKED)
    assert found.smiles == tuple(ASKED)
    assert found.label_names == ("oxygen",)
    assert [problem.row for problem in found.problems] == sorted(UNREAD)
    assert set(found.values.isnan().any(1).nonzero().flatten().tolist()) == UNREAD
    torch.testing.assert_close(found.values[0], alone(place, "classes", "CCO").sigmoid())
