import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from molecule_files import ODD, ogb, write_csv

from equipool.experiments.data import MissingDataError
from equipool.experiments.molecules.data import (
    ColumnSplit,
    CsvSource,
    RandomSplit,
    ScaffoldSplit,
    load_molecules,
    load_problems,
)
from equipool.experiments.molecules.data.sources import ROWS_PER_BATCH
from equipool.experiments.molecules.data.table import Table, TableError, parse_number

COLUMNS = ["name", "smiles", "A", "B", "fold"]
ROWS = [
    ["ethane", "CC", "0", "1", "train"],
    ["broken", "C1CC", "1", "0", "train"],
    ["methanol", "CO", "1", "", "test"],
    ["benzene", "c1ccccc1", "0.0", "NaN", "valid"],
]


@pytest.mark.parametrize("name", ["mine.csv", "mine.csv.gz"])
def test_a_table_becomes_molecules(tmp_path, name):
    path = write_csv(tmp_path / name, COLUMNS, ROWS)
    source = CsvSource(path, labels=("B", "A"), split=ColumnSplit("fold"))
    molecules = load_molecules(source)
    assert molecules.source_rows.tolist() == [0, 2, 3]
    assert molecules.label_names == ("B", "A")
    assert molecules.kind == "classification"
    expected = torch.tensor([[1.0, 0.0], [torch.nan, 1.0], [torch.nan, 0.0]])
    torch.testing.assert_close(molecules.labels, expected, equal_nan=True, rtol=0, atol=0)
    found = {part: positions.tolist() for part, positions in molecules.split.items()}
    assert found == {"train": [0], "valid": [2], "test": [1]}
    for at, smiles in enumerate(["CC", "CO", "c1ccccc1"]):
        graph = ogb("utils.mol").smiles2graph(smiles)
        np.testing.assert_array_equal(molecules.one(at).atoms, graph["node_feat"])
        np.testing.assert_array_equal(molecules.one(at).ends, graph["edge_index"])


def test_what_rdkit_rejects_is_reported(tmp_path, capsys):
    path = write_csv(tmp_path / "mine.csv", COLUMNS, ROWS)
    source = CsvSource(path, labels=("A",), split=RandomSplit())
    load_molecules(source)
    said = capsys.readouterr().err
    assert "RDKit rejects 1 molecule: 1 left out (row 1)" in said
    (problem,) = load_problems(source)
    assert (problem.row, problem.smiles, problem.kept) == (1, "C1CC", False)
    assert "unclosed ring" in problem.reason
    (listed,) = tmp_path.rglob("*.problems.csv")
    assert str(listed) in said
    rows = list(Table(listed).read(lambda row: row.cells))
    assert rows == [["1", "C1CC", problem.reason, "False"]]
    path = write_csv(tmp_path / "kept.csv", ["smiles", "A"], [["CC(C)(C)(C)C", 0], ["C1CC", 1]])
    molecules = load_molecules(CsvSource(path, split=RandomSplit(), keep_unsanitised=True))
    assert molecules.source_rows.tolist() == [0]
    assert "1 kept as written (row 0); 1 left out (row 1)" in capsys.readouterr().err
    path = write_csv(tmp_path / "sound.csv", ["smiles", "A"], [["CC", 0], ["CO", 1]])
    load_molecules(CsvSource(path, split=RandomSplit()))
    assert "RDKit" not in capsys.readouterr().err
    assert not list(tmp_path.rglob("sound*.problems.csv"))


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        (["0", "1", ""], None, "classification (all labels are 0, 1 or missing), 2 labels"),
        (["True", "False"], None, "classification (all labels are 0, 1 or missing), 2 labels"),
        (["0", "10"], None, "regression (column 'B' has '10' in row 1 (line 3)), 2 labels"),
        (["0.5", "1"], None, "regression (column 'B' has '0.5' in row 0 (line 2)), 2 labels"),
        (["0", "1"], "regression", "regression, 2 labels"),
        (["0", "1"], "classification", "classification, 2 labels"),
    ],
)
def test_the_kind_is_that_of_the_labels_and_is_printed_once(tmp_path, capsys, labels, kind, said):
    rows = [["CC", 1, label, "train"] for label in [*labels, "0"]]
    rows[1][3] = "test"
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A", "B", "s"], rows)
    source = CsvSource(path, kind=kind, split=ColumnSplit("s"))
    molecules = load_molecules(source)
    assert molecules.kind == said.partition(",")[0].partition(" ")[0]
    wanted = torch.tensor([[1.0, parse_number(row[2])] for row in rows])
    torch.testing.assert_close(molecules.labels, wanted, equal_nan=True, rtol=0, atol=0)
    parts = f"{len(labels)} train, 0 valid, 1 test"
    assert f": {said}: 'A', 'B'; {parts}\n" in capsys.readouterr().err
    load_molecules(source)
    assert capsys.readouterr().err == ""


def test_many_rows_stay_in_order(tmp_path):
    """More than a batch of them, with molecules that fail on either side of its end."""
    smiles = [ODD[at % len(ODD)] for at in range(ROWS_PER_BATCH + 100)]
    broken = [0, ROWS_PER_BATCH - 1, ROWS_PER_BATCH, len(smiles) - 1]
    for at in broken:
        smiles[at] = "C1CC"
    path = write_csv(tmp_path / "mine.csv", ["y", "smiles"], [*enumerate(smiles)])
    source = CsvSource(path, split=RandomSplit())
    molecules = load_molecules(source)
    kept = [at for at in range(len(smiles)) if at not in broken]
    assert molecules.source_rows.tolist() == kept
    assert molecules.labels.squeeze(1).tolist() == kept
    for at in (0, ROWS_PER_BATCH - 3, ROWS_PER_BATCH - 2, len(kept) - 1):
        graph = ogb("utils.mol").smiles2graph(smiles[kept[at]])
        np.testing.assert_array_equal(molecules.one(at).atoms, graph["node_feat"])
    assert [problem.row for problem in load_problems(source)] == broken


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        ("", {}, "is empty"),
        ("smiles,A\n", {}, "has no data rows"),
        ("SMILES,A\nCC,0\n", {}, "no column 'smiles': its columns are 'SMILES', 'A'"),
        ("C;1\nCC;0\n", {}, "'C;1'; columns must be separated by commas"),
        ("smiles,A\nCC,0\n", {"labels": ("B",)}, "no column 'B': its columns are 'smiles'"),
        ("smiles,A\nCC,0\n", {"split": ColumnSplit("C")}, "no column 'C'"),
        ("smiles,A,A\nCC,0,0\n", {}, "2 columns named 'A': rename them"),
        ("smiles,smiles,A\nCC,CC,0\n", {}, "2 columns named 'smiles'"),
        ("smiles\nCC\n", {}, "has no label columns"),
        (",smiles\n0,CC\n", {}, "has no label columns"),
        ("smiles,A\nCC,0\nCO\n", {}, r"row 1 \(line 3\): expected 2 cells, found 1"),
        ("smiles,A\nCC,0\nCO,1,1\n", {}, r"row 1 \(line 3\): expected 2 cells, found 3"),
        ("smiles,A\nCC,high\n", {}, r"row 0 \(line 2\): column 'A': .* number, found 'high'"),
        ("smiles,A\nCC,high\n", {}, "Every other column was read as a label; .* --labels"),
        ("smiles,A\nCC,inf\n", {}, r"row 0 \(line 2\): column 'A': expected a finite"),
        ("smiles,A\nCC,1e39\n", {}, "expected a finite float32 number, found '1e39'"),
        ("smiles,A\nCC,\nCC,-1\n", {"kind": "classification"}, "A': expected 0 or 1, found '-1'"),
        ("smiles,A,s\nCC,1,\n", {"split": ColumnSplit("s")}, r"row 0 \(line 2\): split column 's'"),
        ('smiles,A\n\n"C\nC",0\n\nCO,x\n', {}, r"row 1 \(line 6\): column 'A'"),
        ("smiles,A\nCC,0\nC\0C,x\n", {}, r"row 1|after line"),
    ],
)
def test_broken_tables_say_where(tmp_path, text, source, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=message) as raised:
        load_molecules(CsvSource(path, **source))
    assert str(path) in str(raised.value)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_several_broken_rows_are_told_at_once(tmp_path):
    rows = [["CC", "x" if at % 2 else 0] for at in range(40)]
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A"], rows)
    with pytest.raises(TableError) as raised:
        load_molecules(CsvSource(path))
    lines = str(raised.value).splitlines()
    assert lines[0] == f"{path} has 20 broken rows:"
    assert [line.split(":")[0].strip() for line in lines[1:11]] == [
        f"row {at} (line {at + 2})" for at in range(1, 20, 2)
    ]
    assert lines[11] == "  and 10 more"
    assert "--labels" in lines[12]
    assert len(lines) == 13


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("smiles,A\nCC,0\n".encode("utf-16"), r"mine.csv is not UTF-8 text: save it as UTF-8"),
        ("smiles,A,n\nCC,0,é\n".encode("latin-1"), r"mine.csv is not UTF-8 text: save it as UTF-8"),
        (gzip.compress(b"smiles,A\nCC,0\n" * 50)[:-9], "mine.csv cannot be read: "),
    ],
    ids=["utf-16", "latin-1", "cut off"],  # the packed bytes have the time in them
)
def test_files_that_are_no_text(tmp_path, content, message):
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(TableError, match=message) as raised:
        load_molecules(CsvSource(tmp_path / "mine.csv"))
    assert "line 0" not in str(raised.value)


@pytest.mark.parametrize("name", ["mine.csv", "MINE.CSV.GZ"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_gzip_is_known_by_content_and_a_byte_order_mark_is_ignored(tmp_path, name, pack, mark):
    (tmp_path / name).write_bytes(pack(f"{mark}smiles,A\n CC ,0\n\tCO,1\n".encode()))
    molecules = load_molecules(CsvSource(tmp_path / name, split=RandomSplit()))
    assert molecules.labels.tolist() == [[0], [1]]


def test_all_other_columns_with_a_name_are_labels(tmp_path):
    """Names of columns that nobody asks for may be equal."""
    path = tmp_path / "mine.csv"
    path.write_text(",smiles,A,note,note,,\n0,CC,0,x,y,,\n1,CO,1,x,y,,\n")
    molecules = load_molecules(CsvSource(path, labels=("A",), split=RandomSplit()))
    assert molecules.labels.tolist() == [[0], [1]]
    path.write_text(",A,fold,smiles,B,,\n0,1,train,CC,0.5,,\n")
    molecules = load_molecules(CsvSource(path, split=ColumnSplit("fold")))
    assert molecules.label_names == ("A", "B")
    assert molecules.labels.tolist() == [[1.0, 0.5]]


def test_a_table_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    counts = f"Check the path (--csv), which is relative to {tmp_path}"
    for path, message in {
        "nope.csv": f"nope.csv does not exist. {counts}",
        "folder.csv": f"folder.csv is not a file. {counts}",
        tmp_path / "nope.csv": f"{tmp_path}/nope.csv does not exist. Check the path (--csv)",
    }.items():
        with pytest.raises(MissingDataError) as raised:
            load_molecules(CsvSource(path))
        assert str(raised.value) == message


def test_no_molecule_for_training(tmp_path):
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A"], [["C1CC", 0], ["", 1]])
    with pytest.raises(ValueError, match=r"no molecule could be read .*unclosed ring"):
        load_molecules(CsvSource(path))
    # without rings they are one scaffold, larger than the training part
    rows = [["CC", 0, "test"], ["CO", 1, "test"], ["CN", 1, "test"]]
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A", "s"], rows)
    for split in (ColumnSplit("s"), ScaffoldSplit()):
        with pytest.raises(ValueError, match="the split left no training molecules; try --split"):
            load_molecules(CsvSource(path, labels=("A",), split=split))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "ranking"}, "kind: expected one of"),
        ({"labels": ("A", "A ")}, "labels: expected each column once"),
        ({"labels": ("A", "smiles")}, "'smiles' is the SMILES column"),
        ({"labels": ("A",), "split": ColumnSplit("A")}, "'A' is the split column"),
    ],
)
def test_sources_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        CsvSource("mine.csv", **arguments)
    assert CsvSource("mine.csv", labels=["A", " B"]).labels == ("A", "B")


def test_recipes_are_those_of_earlier_runs():
    """Runs record a hash of them, and do not resume if it changes."""
    source = CsvSource("mine.csv", labels=("A",), split=RandomSplit(), keep_unsanitised=True)
    assert source.recipe() == {
        "smiles": "smiles",
        "labels": ["A"],
        "split": "RandomSplit(seed=0, train=0.8, valid=0.1)",
        "kind": None,
        "unparsable": "KeepUnsanitised()",
    }
    assert CsvSource("mine.csv").recipe() | {"labels": ["A"]} == source.recipe() | {
        "split": "ScaffoldSplit(train=0.8, valid=0.1)",
        "unparsable": "LeaveOut()",
    }
    assert repr(ColumnSplit("fold")) == "ColumnSplit(name='fold')"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_are_read_as_they_were_written(number):
    assert np.float32(parse_number(repr(number))) == np.float32(number)
    assert np.float32(parse_number(f" {number!r} ")) == np.float32(number)


def test_words_for_what_is_missing_and_what_is_no_number():
    for cell in ("", " ", "nan", "NA", "n/a", "None", "NULL"):
        assert np.isnan(parse_number(cell))
    for cell in ("-inf", "1,5", "0x1", "--", "yes", "1e400"):
        with pytest.raises(ValueError, match="found"):
            parse_number(cell)
