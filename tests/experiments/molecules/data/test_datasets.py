"""The data sets themselves: tables of their form always, and the real ones where they are."""

import csv
import gzip

import numpy as np
import pytest
from molecule_files import SHARED, needs_shared_data, write_csv

from equipool.experiments.molecules import data
from equipool.experiments.molecules.data import DATASETS, datasets, load_molecules, load_problems

TOX21_LABELS, QM9_LABELS = datasets.TOX21_LABELS, datasets.QM9_LABELS

SMILES = ["CC", "CO", "c1ccccc1", "Cc1ccccc1", "C1CC1"]
METAL = "Cc1ccc([B-2]2(c3ccc(C)cc3)=NCCO2)cc1"  # RDKit has come to refuse it


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
    return tmp_path


def test_molhiv_keeps_what_rdkit_refuses(folder):
    parts = ["train", "test", "train", "valid", "train", "test"]
    pairs = enumerate(zip([*SMILES, METAL], parts, strict=True))
    rows = [[at, smiles, "CI", at % 2, part] for at, (smiles, part) in pairs]
    write_csv(folder / "molhiv.csv.gz", ["idx", "smiles", "activity", "HIV_active", "split"], rows)
    molecules = load_molecules("molhiv")
    assert molecules.source_rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert molecules.label_names == ("HIV_active",)
    assert molecules.labels.squeeze(1).tolist() == [0, 1, 0, 1, 0, 1]
    assert molecules.split["test"].tolist() == [1, 5]
    assert molecules.split["valid"].tolist() == [3]


def test_molhiv_from_moleculenet_is_split_by_scaffolds(folder):
    rows = [[smiles, "CI", 1] for smiles in [*SMILES, METAL]]
    write_csv(folder / "HIV.csv", ["smiles", "activity", "HIV_active"], rows)
    molecules = load_molecules("molhiv")
    assert len(molecules) == 6
    parts = [name for at in (2, 3) for name, found in molecules.split.items() if at in found]
    assert parts[0] == parts[1], "two molecules of one scaffold are in one part"


@pytest.mark.parametrize("file", ["toxcast.csv.gz", "toxcast_data.csv.gz", "toxcast.csv"])
def test_toxcast_has_as_many_labels_as_columns(folder, file):
    names = [f"assay {at}" for at in range(20)]
    rows = [[smiles, *([1.0, 0.0, ""] * 7)[:20]] for smiles in [*SMILES, METAL]]
    write_csv(folder / file, ["smiles", *names], rows)
    molecules = load_molecules("toxcast")
    assert molecules.label_names == tuple(names)
    assert len(molecules) == 5, "what RDKit refuses is left out"
    assert molecules.labels.isnan().sum() == 5 * 6
    assert molecules.kind == "classification"


@pytest.mark.parametrize("columns", [["smiles", *TOX21_LABELS], [*TOX21_LABELS, "id", "smiles"]])
def test_tox21_has_twelve_labels(folder, columns):
    values = {"smiles": SMILES, "id": ["TOX1"] * 5}
    rows = zip(*(values.get(name, ["1.0", "", "0.0", "", "1"]) for name in columns), strict=True)
    write_csv(folder / "tox21.csv.gz", columns, rows)
    molecules = load_molecules("tox21")
    assert molecules.label_names == TOX21_LABELS
    assert molecules.labels.nan_to_num(7)[:, 4].tolist() == [1, 7, 0, 7, 1]


@pytest.mark.parametrize(
    ("file", "smiles", "labels"),
    [("qm9.csv.gz", "SMILES", QM9_LABELS), ("qm9.csv", "smiles", datasets.QM9_MOLECULENET_LABELS)],
)
def test_qm9_has_twelve_properties(folder, file, smiles, labels):
    rows = [[at, text, *(float(at * 100 + place) for place in range(12))]
            for at, text in enumerate(SMILES)]  # fmt: skip
    write_csv(folder / file, ["Index", smiles, *labels], rows)
    molecules = load_molecules("qm9")
    assert molecules.kind == "regression"
    assert molecules.label_names == labels
    assert molecules.labels[3].tolist() == [300.0 + place for place in range(12)]
    assert [len(found) for found in molecules.split.values()] == [4, 0, 1]


def test_splits_and_policies_are_those_that_the_documentation_says():
    chosen = {name: known.forms[-1] for name, known in DATASETS.items() if name != "molpcba"}
    scaffold = dict.fromkeys(("molhiv", "toxcast", "tox21"), data.ScaffoldSplit())
    assert {name: form.split for name, form in chosen.items()} == {
        **scaffold, "qm9": data.RandomSplit(),
    }  # fmt: skip
    (table,) = (form for form in DATASETS["molhiv"].forms if str(form.path) == "molhiv.csv.gz")
    assert table.split == data.ColumnSplit("split")
    assert table.keep_unsanitised


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "rows", "labels"),
    [("molhiv", 41_127, 1), ("toxcast", 8_576, 617), ("qm9", 130_831, 12)],
)
def test_the_real_tables_are_whole(name, rows, labels):
    contents = DATASETS[name].find(SHARED).examine()
    assert (contents.num_rows, len(contents.label_names)) == (rows, labels)


@needs_shared_data
def test_the_real_labels_of_toxcast():
    batches = list(DATASETS["toxcast"].find(SHARED).batches())
    labels = np.concatenate([batch.labels for batch in batches])
    assert labels.shape == (8_576, 617)
    assert (~np.isnan(labels)).sum() == 1_533_660
    assert (labels == 1).sum() == 126_651
    assert (labels == 0).sum() == 1_533_660 - 126_651


@needs_shared_data
def test_the_real_tox21(folder):
    """The first 2,400 rows."""
    with gzip.open(SHARED / "tox21.csv.gz", "rt") as file:
        header, *table = list(csv.reader(file))[:2401]
    write_csv(folder / "tox21.csv.gz", header, table)
    molecules = load_molecules("tox21")
    refused = [problem.row for problem in load_problems("tox21")]
    assert refused == [1322, 2290, 2297]
    kept = [row[1:] for at, row in enumerate(table) if at not in refused]
    expected = np.array([[float(cell) if cell else np.nan for cell in row] for row in kept])
    np.testing.assert_array_equal(molecules.labels.numpy(), expected.astype(np.float32))
    assert sum(len(found) for found in molecules.split.values()) == len(kept)
