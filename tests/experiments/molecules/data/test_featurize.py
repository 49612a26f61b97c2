import csv
import gzip
import subprocess
import sys

import numpy as np
import pytest
import torch
from molecule_files import BROKEN, ODD, SHARED, needs_shared_data, ogb

from equipool.experiments.molecules.data import featurize, molecules_from_smiles
from equipool.experiments.molecules.data.featurize import UNREADABLE, unsanitised


def check_against_ogb(molecules, smiles):
    """Every array of every molecule is what `smiles2graph` says."""
    assert len(molecules) == len(smiles)
    for at, text in enumerate(smiles):
        graph = ogb("utils.mol").smiles2graph(text)
        alone = molecules.one(at)
        np.testing.assert_array_equal(alone.atoms.numpy(), graph["node_feat"], text)
        np.testing.assert_array_equal(alone.bonds.numpy(), graph["edge_feat"], text)
        np.testing.assert_array_equal(alone.ends.numpy(), graph["edge_index"], text)


def test_odd_molecules_are_as_ogb_has_them():
    molecules, problems = molecules_from_smiles([f" {smiles}\t" for smiles in ODD])
    assert problems == ()
    check_against_ogb(molecules, ODD)
    assert molecules.labels.shape == (len(ODD), 0)
    assert all(positions.numel() == 0 for positions in molecules.split.values())
    assert molecules.atoms.dtype == torch.uint8


@needs_shared_data
@pytest.mark.parametrize(
    ("file", "column"),
    [("molhiv", "smiles"), ("toxcast", "smiles"), ("tox21", "smiles"), ("qm9", "SMILES")],
)
def test_real_molecules_are_as_ogb_has_them(file, column):
    with gzip.open(SHARED / f"{file}.csv.gz", "rt") as opened:
        rows = [row[column] for row in csv.DictReader(opened)]
    sample = [rows[at] for at in np.random.default_rng(0).integers(0, len(rows), 60)]
    molecules, problems = molecules_from_smiles(sample)
    refused = {problem.row for problem in problems}
    assert len(refused) < 3
    check_against_ogb(molecules, [text for at, text in enumerate(sample) if at not in refused])


def test_molecules_without_bonds_and_no_molecules():
    molecules, _ = molecules_from_smiles(["C", "[Na+].[Cl-]"])
    assert molecules.num_atoms.tolist() == [1, 2]
    assert molecules.num_bonds.tolist() == [0, 0]
    assert (molecules.ends.shape, molecules.bonds.shape) == ((2, 0), (0, 3))
    molecules, problems = molecules_from_smiles([])
    assert (len(molecules), problems, molecules.atoms.shape) == (0, (), (0, 9))


def test_broken_smiles_are_listed_with_row_and_reason():
    smiles = ["CC", *BROKEN, "CO"]
    molecules, problems = molecules_from_smiles(smiles)
    assert molecules.source_rows.tolist() == [0, len(smiles) - 1]
    assert [problem.row for problem in problems] == list(range(1, len(smiles) - 1))
    assert [problem.smiles for problem in problems] == list(BROKEN)
    for problem in problems:
        assert BROKEN[problem.smiles] in problem.reason
        assert not problem.kept
    check_against_ogb(molecules, ["CC", "CO"])


def test_an_rdkit_that_cannot_be_asked_for_its_words(monkeypatch):
    from rdkit import rdBase

    monkeypatch.delattr(rdBase, "CaptureErrorLog", raising=False)
    _, (problem,) = molecules_from_smiles(["C1CC"])
    assert problem.reason == UNREADABLE


def test_rdkit_says_nothing_itself(capfd):
    molecules_from_smiles(list(BROKEN), keep_unsanitised=True)
    assert capfd.readouterr().err == ""


def test_what_can_be_read_is_kept_unsanitised():
    smiles = list(BROKEN)
    molecules, problems = molecules_from_smiles(smiles, keep_unsanitised=True)
    kept = [problem.smiles for problem in problems if problem.kept]
    assert kept == ["CC(C)(C)(C)C", "c1cccc1"]
    assert molecules.num_atoms.tolist() == [6, 5]
    assert molecules.num_bonds.tolist() == [10, 10]
    assert [smiles[row] for row in molecules.source_rows.tolist()] == kept
    assert len(problems) == len(smiles)


def test_keeping_changes_nothing_but_the_check_of_valences():
    """A molecule that RDKit does accept has the same features when it is rescued."""
    smiles = [text for text in ODD if "[H]" not in text and "@" not in text and "/" not in text]
    for text in smiles:
        graph = ogb("utils.mol").smiles2graph(text)
        expected = [graph[name] for name in ("node_feat", "edge_feat", "edge_index")]
        for found, array in zip(featurize.graph_of(unsanitised(text)), expected, strict=True):
            np.testing.assert_array_equal(found, array, text)


def test_a_rescued_molecule_has_rings_aromatics_and_hydrogens():
    """Boron with five bonds, between two tolyl groups and a ring of five."""
    molecules, (problem,) = molecules_from_smiles(
        ["Cc1ccc([B-2]2(c3ccc(C)cc3)=NCCO2)cc1"], keep_unsanitised=True
    )
    assert problem.kept
    element, _, degree, charge, hydrogens, _, hybrid, aromatic, ring = molecules.atoms.T.tolist()
    boron = element.index(4)  # of atomic number 5
    assert (degree[boron], charge[boron] - 5) == (4, -2)
    assert sum(aromatic) == 12
    assert sum(ring) == 12 + 5
    assert sum(hydrogens) == 2 * 3 + 8 + 2 * 2
    assert hybrid[0] == 2  # SP3
    assert molecules.bonds[:, 0].tolist().count(3) == 2 * 12  # aromatic bonds
    assert molecules.bonds[:, 0].tolist().count(1) == 2  # B=N


def test_molecules_that_have_no_features_are_listed(monkeypatch):
    """Too large, or with a bond that OGB has no category for."""

    def refuse(bond):
        return ["SINGLE"].index(str(bond.GetBondType())), 0, 0

    monkeypatch.setattr(featurize, "MAX_ATOMS", 3)
    monkeypatch.setattr(featurize.ogb_features(), "bond_to_feature_vector", refuse)
    molecules, problems = molecules_from_smiles(["CCC", "CCCC", "C=C"])
    assert molecules.source_rows.tolist() == [0]
    assert [(problem.row, problem.kept) for problem in problems] == [(1, False), (2, False)]
    assert problems[0].reason == "4 atoms, more than 3"
    assert "DOUBLE" in problems[1].reason


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("smiles", ["CC O", "CC\tethane", "C\nC", "CC\u00a0O"])
def test_several_words_are_no_molecule(smiles, keep):
    """RDKit would take the first for the molecule, and the rest for its name."""
    molecules, (problem,) = molecules_from_smiles(["C", smiles], keep_unsanitised=keep)
    assert molecules.source_rows.tolist() == [0]
    assert (problem.row, problem.smiles, problem.kept) == (1, smiles, False)
    assert "white space" in problem.reason


@pytest.mark.processes
def test_nothing_asks_the_network():
    """`import ogb` would, in a thread."""
    code = """
import socket, sys
class Refused(socket.socket):
    def __init__(self, *args, **kwargs):
        raise AssertionError("the network is asked")
socket.socket = Refused
from equipool.experiments.molecules.data import featurize, molecules_from_smiles
molecules, problems = molecules_from_smiles(["CCO", "C1CC"])
assert len(molecules) == len(problems) == 1
assert not {"ogb", "outdated", "requests"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
