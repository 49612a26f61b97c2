"""Tables of SMILES and OGB's folders: what is read, and how what is broken is named."""

import gzip

import numpy as np
import pytest
import torch
from molecule_files import ODD, check_against_ogb, write_ogb_folder, write_packed

from equipool.experiments.molecules.molecule_set import PARTS
from equipool.experiments.molecules.sources import (
    OgbFolder,
    SmilesTable,
    random_parts,
    scaffold_parts,
)
from equipool.tables import TableError

NAN = float("nan")
TABLE = """name,smiles,A,B,fold,
ethane,CC,0,1,train,
broken,C1CC,1,0,train,
methanol,CO,True,,test,
benzene,c1ccccc1,0.0,NaN,valid,
"""


def same(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_table_becomes_molecules(tmp_path, pack):
    path = tmp_path / "mine.csv"
    path.write_bytes(pack(f"\ufeff{TABLE}".encode()))
    molecules, (problem,) = SmilesTable(path, labels=("B", "A"), split="fold").read()
    same(molecules.labels, [[1.0, 0.0], [NAN, 1.0], [NAN, 0.0]])
    assert (molecules.label_names, molecules.kind) == (("B", "A"), "classification")
    assert [PARTS[part] for part in molecules.parts.tolist()] == ["train", "test", "valid"]
    assert (problem.row, problem.smiles, problem.kept) == (1, "C1CC", False)
    check_against_ogb(molecules, ["CC", "CO", "c1ccccc1"])


def test_labels_are_all_other_columns_and_numbers_if_any_is(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(",smiles,A,B,,\n0,CC,0,1,,\n1,CO,2.5,1,,\n")
    molecules, _ = SmilesTable(path, split="random").read()
    assert (molecules.label_names, molecules.kind) == (("A", "B"), "regression")
    same(molecules.labels, [[0.0, 1.0], [2.5, 1.0]])
    chosen, _ = SmilesTable(path, labels=("B",), kind="regression", split="random").read()
    assert chosen.kind == "regression"


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("smiles,A\n", {}, ["is empty"]),
        ("SMILES,A\nCC,0\n", {}, ["no column 'smiles'", "'SMILES', 'A'"]),
        ("smiles,A,A\nCC,0,0\n", {}, ["2 columns named 'A'"]),
        ("smiles,\nCC,0\n", {}, ["has no label columns"]),
        ("smiles,A\n\nCC,0\n\nCO,high\n", {}, ["line 5", "column 'A'", "'high'", "a number"]),
        ("smiles,A\nCC,inf\n", {}, ["line 2", "column 'A'", "inf", "finite"]),
        ("smiles,A\nCC,1e39\n", {}, ["line 2", "column 'A'", "1e+39", "float32"]),
        ("smiles,A\nC,\nCC,-1\n", {"kind": "classification"}, ["line 3", "'A' has -1", "0 or 1"]),
        ("smiles,A,s\nC,1,train\nCC,1,\n", {"split": "s"}, ["line 3", "column 's'", "no value"]),
        ("smiles,A,s\nC,1,trian\n", {"split": "s"}, ["line 2", "'trian'", "train, valid, test"]),
        ("smiles,A\nC1CC,1\n", {}, ["no molecule could be read", "unclosed ring"]),
    ],
)
def test_a_broken_table_is_named_with_line_and_column(tmp_path, text, settings, words):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(TableError) as raised:
        SmilesTable(path, **settings).read()
    for word in (str(path), *words):
        assert word in str(raised.value)


SMILES = [*ODD, "c1ccncc1"]
LABELS = np.random.default_rng(0).choice([0.0, 1.0, NAN], (len(SMILES), 2))
SPLIT = {"train": range(4, len(SMILES)), "valid": [3], "test": [2, 0]}


@pytest.fixture
def ogb_folder(tmp_path):
    return write_ogb_folder(tmp_path / "molpcba", SMILES, LABELS, SPLIT)


def test_a_folder_of_ogb_becomes_molecules(ogb_folder):
    molecules, problems = OgbFolder(ogb_folder).read()
    assert problems == ()
    same(molecules.labels, LABELS.astype(np.float32).tolist())
    assert molecules.label_names == ("assay 0", "assay 1")
    for part, positions in SPLIT.items():
        assert molecules.positions(part).tolist() == sorted(positions)
    check_against_ogb(molecules, SMILES)


def test_a_missing_label_may_be_an_empty_line(tmp_path):
    labels = np.array([[NAN], [1.0], [NAN]])
    split = {"train": [0], "valid": [1], "test": [2]}
    folder = write_ogb_folder(tmp_path / "alone", ["C", "CC", "CO"], labels, split)
    molecules, _ = OgbFolder(folder).read()
    same(molecules.labels, labels.astype(np.float32).tolist())


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("raw/node-feat", lambda rows: rows[:-1]),
        ("raw/node-feat", lambda rows: [f"-{rows[0]}", *rows[1:]]),
        ("raw/edge", lambda rows: [*rows[:-1], "0,6"]),
        ("raw/edge-feat", lambda rows: ["9,0,0", *rows[1:]]),
        ("raw/graph-label", lambda rows: rows[:-1]),
        ("raw/num-node-list", lambda rows: ["-1", *rows[1:]]),
        ("split/scaffold/test", lambda rows: ["40"]),
        ("raw/edge", None),
    ],
)
def test_a_broken_file_of_ogb_is_named(ogb_folder, name, edit):
    path = ogb_folder / f"{name}.csv.gz"
    if edit is None:
        path.write_bytes(path.read_bytes()[:-12])  # cut off
    else:
        write_packed(path, edit(gzip.decompress(path.read_bytes()).decode().splitlines()))
    with pytest.raises(TableError, match=str(path)):
        OgbFolder(ogb_folder).read()


def parts_of(parts):
    return {name: np.flatnonzero(parts == part).tolist() for part, name in enumerate(PARTS)}


@pytest.mark.parametrize(
    ("scaffolds", "train", "valid"),
    [
        ("aaaaabbbcd", [0, 1, 2, 3, 4, 5, 6, 7], [9]),  # among equals the last to appear
        ("aaaaabbbbb", [5, 6, 7, 8, 9], []),  # those of a fit in neither
        ("abbbbccccc", [0, 5, 6, 7, 8, 9], [1, 2, 3, 4]),
        ("abcdefghij", [2, 3, 4, 5, 6, 7, 8, 9], [1]),
        ("a", [], []),
    ],
)
def test_the_scaffold_split_is_ogbs(scaffolds, train, valid):
    found = parts_of(scaffold_parts(scaffolds))
    test = set(range(len(scaffolds))) - {*train, *valid}
    assert found == {"train": sorted(train), "valid": valid, "test": sorted(test)}


@pytest.mark.parametrize("number", [1, 9, 1001])
def test_the_random_split_has_its_shares(number):
    found = parts_of(random_parts(number))
    assert len(found["train"]) == round(0.8 * number)
    assert len(found["train"]) + len(found["valid"]) == round(0.9 * number)
    assert number < 10 or found["train"] != sorted(range(number))[: len(found["train"])]
