import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from molecule_files import ODD, ogb, write_csv

from equipool.data.molecules import (
    ColumnSplit,
    CsvSource,
    KeepUnsanitised,
    RandomSplit,
    ScaffoldSplit,
    load_molecules,
    load_problems,
)
from equipool.data.molecules.cells import number_in
from equipool.data.molecules.csv_source import PER_BATCH
from equipool.data.molecules.table import Table, TableError

COLUMNS = ["name", "smiles", "A", "B", "fold"]
ROWS = [
    ["ethane", "CC", "0", "1", "train"],
    ["broken", "C1CC", "1", "0", "train"],
    ["methanol", "CO", "1", "", "test"],
    ["benzene", "c1ccccc1", "0.0", "NaN", "valid"],
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "data"))


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
    assert {part: found.tolist() for part, found in molecules.split.items()} == {
        "train": [0],
        "valid": [2],
        "test": [1],
    }
    for at, smiles in enumerate(["CC", "CO", "c1ccccc1"]):
        graph = ogb("utils.mol").smiles2graph(smiles)
        np.testing.assert_array_equal(molecules.one(at).atoms, graph["node_feat"])
        np.testing.assert_array_equal(molecules.one(at).ends, graph["edge_index"])


def test_broken_smiles_are_reported(tmp_path, capsys):
    path = write_csv(tmp_path / "mine.csv", COLUMNS, ROWS)
    source = CsvSource(path, labels=("A",), split=RandomSplit())
    load_molecules(source)
    said = capsys.readouterr().err
    assert "RDKit does not read 1 molecule: 1 left out (row 1)" in said
    (problem,) = load_problems(source)
    assert (problem.row, problem.smiles, problem.kept) == (1, "C1CC", False)
    assert "unclosed ring" in problem.reason
    (listed,) = (tmp_path / "data").rglob("*.problems.csv")
    assert str(listed) in said
    rows = [row.cells for row in Table(listed).rows()]
    assert rows == [["1", "C1CC", problem.reason, "False"]]


def test_what_is_kept_is_reported_as_well(tmp_path, capsys):
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A"], [["CC(C)(C)(C)C", 0], ["C1CC", 1]])
    molecules = load_molecules(CsvSource(path, split=RandomSplit(), unparsable=KeepUnsanitised()))
    assert molecules.source_rows.tolist() == [0]
    said = capsys.readouterr().err
    assert "1 kept without checking valences (row 0); 1 left out (row 1)" in said


def test_without_problems_there_is_no_list(tmp_path, capsys):
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A"], [["CC", 0], ["CO", 1]])
    load_molecules(CsvSource(path, split=RandomSplit()))
    assert "RDKit" not in capsys.readouterr().err
    assert not list((tmp_path / "data").rglob("*.problems.csv"))


def test_all_other_columns_are_labels(tmp_path):
    path = write_csv(tmp_path / "mine.csv", ["A", "fold", "smiles", "B"], [[1, "train", "C", 0.5]])
    molecules = load_molecules(CsvSource(path, split=ColumnSplit("fold")))
    assert molecules.label_names == ("A", "B")
    assert molecules.labels.tolist() == [[1.0, 0.5]]


def test_spaces_around_smiles_do_not_matter(tmp_path):
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A"], [[" CC ", 0], ["\tCO", 1], [" ", 1]])
    source = CsvSource(path, split=RandomSplit())
    assert load_molecules(source).num_atoms.tolist() == [2, 2]
    assert [problem.reason for problem in load_problems(source)] == ["empty"]


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["0", "1", ""], None, "classification"),
        (["True", "False"], None, "classification"),
        (["0", "2"], None, "regression"),
        (["0.5", "1"], None, "regression"),
        (["0", "1"], "regression", "regression"),
    ],
)
def test_the_kind_is_that_of_the_labels(tmp_path, labels, kind, expected):
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A"], [["CC", label] for label in labels])
    molecules = load_molecules(CsvSource(path, kind=kind, split=RandomSplit()))
    assert molecules.kind == expected
    wanted = torch.tensor([[number_in(label)] for label in labels])
    torch.testing.assert_close(molecules.labels, wanted, equal_nan=True, rtol=0, atol=0)


def test_many_rows_stay_in_order(tmp_path):
    """More than a batch of them, with molecules that fail on either side of its end."""
    smiles = [ODD[at % len(ODD)] for at in range(PER_BATCH + 100)]
    broken = [0, PER_BATCH - 1, PER_BATCH, len(smiles) - 1]
    for at in broken:
        smiles[at] = "C1CC"
    path = write_csv(tmp_path / "mine.csv", ["y", "smiles"], [*enumerate(smiles)])
    source = CsvSource(path, split=RandomSplit())
    molecules = load_molecules(source)
    kept = [at for at in range(len(smiles)) if at not in broken]
    assert molecules.source_rows.tolist() == kept
    assert molecules.labels.squeeze(1).tolist() == kept
    for at in (0, PER_BATCH - 3, PER_BATCH - 2, len(kept) - 1):
        graph = ogb("utils.mol").smiles2graph(smiles[kept[at]])
        np.testing.assert_array_equal(molecules.one(at).atoms, graph["node_feat"])
    assert [
        problem.row for problem in load_problems(CsvSource(path, split=RandomSplit()))
    ] == broken


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        ("", {}, "is empty"),
        ("smiles,A\n", {}, "has no rows"),
        ("SMILES,A\nCC,0\n", {}, "no column 'smiles': its columns are 'SMILES', 'A'"),
        ("smiles,A\nCC,0\n", {"labels": ("B",)}, "no column 'B': its columns are 'smiles', 'A'"),
        ("smiles,A\nCC,0\n", {"split": ColumnSplit("C")}, "no column 'C'"),
        ("smiles,A,A\nCC,0,0\n", {}, "columns of the same name: 'A'"),
        ("smiles\nCC\n", {}, "has no columns of labels"),
        ("smiles,A\nCC,0\nCO\n", {}, r"row 1 \(line 3\): expected 2 cells, found 1"),
        ("smiles,A\nCC,0\nCO,1,1\n", {}, r"row 1 \(line 3\): expected 2 cells, found 3"),
        ("smiles,A\nCC,high\n", {}, r"row 0 \(line 2\): column 'A': .* number, found 'high'"),
        ("smiles,A\nCC,inf\n", {}, r"row 0 \(line 2\): column 'A': expected a finite"),
        ("smiles,A\nCC,1e39\n", {}, "expected a finite float32 number, found '1e39'"),
        ("smiles,A\nCC,2\n", {"kind": "classification"}, "column 'A': expected 0 or 1, found '2'"),
        ("smiles,A,s\nCC,1,\n", {"split": ColumnSplit("s")}, r"row 0 \(line 2\): column 's' is"),
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
    assert not list((tmp_path / "data").rglob("*.safetensors"))


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
    assert lines[11:] == ["  and 10 more"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", gzip.compress(b"smiles,A\nCC,0\n" * 50)[:-9]])
def test_files_that_are_no_text(tmp_path, content):
    name = "mine.csv" if content[:1] == b"\xff" else "mine.csv.gz"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match="cannot be read after line"):
        load_molecules(CsvSource(tmp_path / name))


@pytest.mark.parametrize(("name", "pack"), [("mine.csv", bytes), ("mine.csv.gz", gzip.compress)])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack("\ufeffsmiles,A\nCC,0\n".encode()))
    source = CsvSource(tmp_path / name, split=RandomSplit())
    assert load_molecules(source).label_names == ("A",)


def test_no_molecule_that_can_be_read(tmp_path):
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A"], [["C1CC", 0], ["", 1]])
    with pytest.raises(ValueError, match=r"no molecule can be read, .*unclosed ring"):
        load_molecules(CsvSource(path))


@pytest.mark.parametrize("split", [ColumnSplit("s"), ScaffoldSplit()])
def test_no_molecule_for_training(tmp_path, split):
    """All molecules are without rings: they are one scaffold, larger than the part for training."""
    rows = [["CC", 0, "test"], ["CO", 1, "test"], ["CN", 1, "test"]]
    path = write_csv(tmp_path / "mine.csv", ["smiles", "A", "s"], rows)
    with pytest.raises(ValueError, match="no molecule is left for training; choose another split"):
        load_molecules(CsvSource(path, labels=("A",), split=split))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "ranking"}, "kind: expected one of"),
        ({"labels": ("A", "A")}, "labels: expected each column once"),
        ({"labels": ("A", "smiles")}, "'smiles' is the column of the SMILES"),
        ({"labels": ("A",), "split": ColumnSplit("A")}, "'A' is the column of the split"),
    ],
)
def test_sources_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        CsvSource("mine.csv", **arguments)


def test_a_list_of_labels_will_do():
    assert CsvSource("mine.csv", labels=["A", "B"]).labels == ("A", "B")


def test_what_decides_on_the_result_is_in_the_recipe():
    base = CsvSource("mine.csv")
    others = [
        CsvSource("mine.csv", smiles="SMILES"),
        CsvSource("mine.csv", labels=("A",)),
        CsvSource("mine.csv", split=RandomSplit()),
        CsvSource("mine.csv", split=ScaffoldSplit(train=0.7)),
        CsvSource("mine.csv", kind="regression"),
        CsvSource("mine.csv", unparsable=KeepUnsanitised()),
    ]
    recipes = [str(source.recipe()) for source in [base, *others]]
    assert len(set(recipes)) == len(recipes)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_are_read_as_they_were_written(number):
    assert np.float32(number_in(repr(number))) == np.float32(number)
    assert np.float32(number_in(f" {number!r} ")) == np.float32(number)


@pytest.mark.parametrize("cell", ["", " ", "nan", "NA", "n/a", "None", "NULL"])
def test_words_for_what_is_missing(cell):
    assert np.isnan(number_in(cell))


@pytest.mark.parametrize("cell", ["-inf", "1,5", "0x1", "--", "yes", "1e400"])
def test_what_is_no_number(cell):
    with pytest.raises(ValueError, match="found"):
        number_in(cell)
