import gzip

import numpy as np
import pytest
from molecule_files import ODD, SHARED, needs_shared_data, ogb, write_ogb_folder, write_packed

from equipool.experiments.molecules.data import OgbFolder, load_molecules
from equipool.experiments.molecules.data.splits import GroupIndex
from equipool.experiments.molecules.data.table import TableError

NAN = float("nan")
SMILES = [*ODD, "CCO", "c1ccncc1"]
LABELS = np.random.default_rng(0).choice([0.0, 1.0, NAN], (len(SMILES), 3))
BEYOND = r"edge.csv.gz: molecule 22 \(from 0\) has 6 atoms, found a bond between \[0, 6\]"
NO_CLASS = r"graph-label.csv.gz: molecule 1 \(from 0\): expected 0, 1 or missing .*, found 0.5"
SPLIT = {"train": list(range(2, len(SMILES))), "valid": [1], "test": [0]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
    return write_ogb_folder(tmp_path / "ogbg_molpcba", SMILES, LABELS, SPLIT, ["X", "Y", "Z"])


def check(molecules):
    assert len(molecules) == len(SMILES)
    for at, smiles in enumerate(SMILES):
        graph = ogb("utils.mol").smiles2graph(smiles)
        alone = molecules.one(at)
        np.testing.assert_array_equal(alone.atoms, graph["node_feat"], smiles)
        np.testing.assert_array_equal(alone.bonds, graph["edge_feat"], smiles)
        np.testing.assert_array_equal(alone.ends, graph["edge_index"], smiles)
    np.testing.assert_array_equal(molecules.labels, LABELS.astype(np.float32))
    assert {part: found.tolist() for part, found in molecules.split.items()} == SPLIT
    assert molecules.source_rows.tolist() == list(range(len(SMILES)))
    assert molecules.kind == "classification"


@pytest.mark.parametrize("per_piece", [1, 4, 4096])
def test_the_official_folder_becomes_molecules(folder, monkeypatch, per_piece):
    monkeypatch.setattr("equipool.experiments.molecules.data.ogb_source.CHUNK_SIZE", per_piece)
    molecules = load_molecules("molpcba")
    check(molecules)
    assert molecules.label_names == ("X", "Y", "Z")
    # as ogb's own reader of the same files
    graphs = ogb("io.read_graph_raw").read_csv_graph_raw(str(folder / "raw"), add_inverse_edge=True)
    for at, graph in enumerate(graphs):
        alone = molecules.one(at)
        np.testing.assert_array_equal(alone.atoms, graph["node_feat"])
        np.testing.assert_array_equal(alone.bonds, graph["edge_feat"].reshape(-1, 3))
        np.testing.assert_array_equal(alone.ends, graph["edge_index"])


@pytest.mark.parametrize("name", ["ogbg_molpcba_pyg", "pcba", "ogbg_molhiv"])
def test_folders_of_other_names_are_found_and_pickles_ignored(folder, name):
    folder = folder.rename(folder.with_name(name))
    (folder / "processed").mkdir()
    (folder / "processed" / "data_processed").write_bytes(b"not a pickle")
    check(load_molecules("molhiv" if name == "ogbg_molhiv" else "ogbg-molpcba"))
    check(load_molecules(OgbFolder(folder)))


@pytest.mark.parametrize("there", [True, False])
def test_without_names_in_the_mapping_labels_are_numbered(folder, there):
    if there:
        change(folder, "mapping/mol", lambda rows: ["X,X,Z,smiles,mol_id", *rows[1:]])
    else:
        (folder / "mapping" / "mol.csv.gz").unlink()
    molecules = load_molecules("molpcba")
    check(molecules)
    assert molecules.label_names == ("task 0", "task 1", "task 2")


def test_molecules_in_no_part_stay_in_the_set(folder):
    write_packed(folder / "split/scaffold/test.csv.gz", [])
    molecules = load_molecules("molpcba")
    assert len(molecules) == len(SMILES)
    assert molecules.split["test"].numel() == 0


def change(folder, name, edit):
    path = folder / f"{name}.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    write_packed(path, edit(lines))


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("raw/node-feat", lambda rows: rows[:-1], "node-feat.csv.gz: expected at least .* lines"),
        ("raw/node-feat", lambda rows: [*rows, rows[0]], "node-feat.*lines, found more"),
        ("raw/edge", lambda rows: [*rows, rows[0]], "edge.csv.gz: expected .* lines, found more"),
        ("raw/edge", lambda rows: ["0,40000", *rows[1:]], "edge.csv.gz.*expected numbers below"),
        ("raw/edge", lambda rows: ["0,-1", *rows[1:]], "edge.csv.gz.*expected numbers below"),
        ("raw/edge", lambda rows: [*rows[:-1], "0,6"], BEYOND),
        ("raw/edge", lambda rows: [*rows[:-1], "6,0"], BEYOND.replace("0, 6", "6, 0")),
        ("raw/num-edge-list", lambda rows: ["-1", *rows[1:]], "num-edge.*at least 0, found -1"),
        ("raw/edge-feat", lambda rows: ["9,0,0", *rows[1:]], r"below \(5, 6, 2\)"),
        ("raw/edge-feat", lambda rows: [row + ",0" for row in rows], "rows of 3 numbers, found 4"),
        ("raw/node-feat", lambda rows: ["x" + rows[0], *rows[1:]], "node-feat.csv.gz, after line"),
        ("raw/graph-label", lambda rows: rows[:-1], "graph-label.*expected at least"),
        (
            "raw/graph-label",
            lambda rows: [rows[0], "1,0", *rows[2:]],
            "after line 0: .*columns changed",
        ),
        ("raw/graph-label", lambda rows: ["a,b,c", *rows[1:]], "could not convert string 'a'"),
        ("raw/graph-label", lambda rows: [rows[0], "0,1,0.5", *rows[2:]], NO_CLASS),
        ("raw/num-node-list", lambda rows: rows[:-1], "num-node-list has 22 molecules"),
        ("raw/num-node-list", lambda rows: ["a", *rows[1:]], "expected a number in each line"),
        ("raw/num-node-list", lambda rows: ["40000", *rows[1:]], "at most 32,767 atoms"),
        ("split/scaffold/test", lambda rows: ["23"], "test.csv.gz: expected positions below 23"),
        ("split/scaffold/test", lambda rows: ["-1"], "test.csv.gz: expected positions below 23"),
        ("split/scaffold/test", lambda rows: ["1"], "test.csv.gz: a molecule is also in"),
        ("split/scaffold/test", lambda rows: ["0", "0"], "test.csv.gz: a molecule is listed twice"),
    ],
)
def test_broken_files_are_named(folder, monkeypatch, name, edit, message):
    monkeypatch.setattr("equipool.experiments.molecules.data.ogb_source.CHUNK_SIZE", 20)
    change(folder, name, edit)
    with pytest.raises(TableError, match=message):
        load_molecules("molpcba")
    assert not list(folder.parent.rglob("*.safetensors"))


FILES = [
    *(f"raw/{name}" for name in ("num-node-list", "num-edge-list", "node-feat", "edge-feat")),
    *("raw/edge", "raw/graph-label", "split/scaffold/valid"),
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda content: content[:-12], "cannot be read: "),  # cut
        (lambda content: content[:10] + b"\xff" * 40, "cannot be read: "),  # not packed so
        (lambda content: gzip.compress(b"\xff\xfe0"), "is not UTF-8 text: save it as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_unpacked_is_named(folder, name, broken, message):
    path = folder / f"{name}.csv.gz"
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(TableError, match=message) as raised:
        load_molecules("molpcba")
    assert str(path) in str(raised.value)


def test_a_missing_label_may_be_an_empty_line(tmp_path):
    """The first one, too, by which the labels are counted."""
    labels = np.array([[NAN], [1.0], [NAN]])
    split = {"train": [0, 1], "valid": [], "test": [2]}
    alone = write_ogb_folder(tmp_path / "alone", ["C", "CC", "CO"], labels, split)
    packed = (alone / "raw/graph-label.csv.gz").read_bytes()
    assert gzip.decompress(packed) == b"\n1.0\n\n"
    molecules = load_molecules(OgbFolder(alone), tmp_path)
    np.testing.assert_array_equal(molecules.labels, labels)
    assert molecules.label_names == ("task 0",)


@needs_shared_data
def test_the_genuine_counts_and_split_of_molpcba():
    genuine = OgbFolder(SHARED / "molpcba")
    num_atoms, num_bonds = genuine.counts()
    assert len(num_atoms) == len(num_bonds) == 437_929
    assert num_atoms.min() >= 1
    assert num_atoms.mean() == pytest.approx(25.97, abs=0.01)  # as OGB's page says: 26.0
    assert num_bonds.mean() == pytest.approx(28.11, abs=0.01)  # 28.1
    parts = genuine.assign(GroupIndex([""] * 437_929))
    assert np.bincount(parts).tolist() == [350_343, 43_793, 43_793]


@needs_shared_data
def test_a_folder_that_is_not_complete_says_what_it_lacks():
    with pytest.raises(FileNotFoundError) as raised:
        load_molecules("molpcba", SHARED)
    lacks = "lacks raw/node-feat.csv.gz, raw/edge-feat.csv.gz, raw/edge.csv.gz"
    for words in (lacks, "GraphPropPredDataset", "pcba.zip"):
        assert words in str(raised.value)
