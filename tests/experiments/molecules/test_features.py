"""Features of molecules, against those of `ogb`."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from molecule_files import BROKEN, ODD, check_against_ogb, ogb

from equipool.experiments.molecules import features
from equipool.experiments.molecules.features import (
    features_of,
    featurise,
    parse_smiles,
    scaffold_of,
    unsanitised,
)


def test_odd_molecules_are_as_ogb_has_them():
    found = featurise(ODD)
    assert found.problems == ()
    check_against_ogb(found.molecules, ODD)


def test_rejected_molecules_are_listed_with_row_and_reason(capfd):
    smiles = ["CC", *BROKEN, "CO"]
    found = featurise(smiles)
    assert found.rows == [0, len(smiles) - 1]
    assert [problem.row for problem in found.problems] == list(range(1, len(smiles) - 1))
    for problem in found.problems:
        assert BROKEN[problem.smiles] in problem.reason
    assert featurise([]).rows == []
    assert capfd.readouterr().err == "", "RDKit prints nothing itself"


def test_older_rdkit_rejects_the_same_without_a_reason(monkeypatch):
    monkeypatch.delattr("rdkit.rdBase.CaptureErrorLog")
    found = featurise(["CC", *BROKEN])
    assert found.rows == [0]
    assert {problem.reason for problem in found.problems[1:]} >= {"RDKit rejects it"}


def test_what_can_be_parsed_may_be_kept():
    found = featurise(list(BROKEN), keep_unsanitised=True)
    kept = [problem.smiles for problem in found.problems if problem.kept]
    assert kept == ["CC(C)(C)(C)C", "c1cccc1"]
    assert [list(BROKEN)[row] for row in found.rows] == kept
    for text in ("CC(=O)[O-].[NH3+]CC", "c1ccccc1-c1cc[nH]c1", "N->[Fe]"):
        atoms, bonds, ends = features_of(unsanitised(text))
        for own, expected in zip((atoms, bonds, ends.T), ogb(text), strict=True):
            np.testing.assert_array_equal(own, expected)  # only the check of valences is left out


def scaffold(smiles):
    return scaffold_of(parse_smiles(smiles, keep_unsanitised=True)[0], smiles)


def test_scaffolds_are_rings_and_what_links_them():
    assert scaffold("Cc1cc(Oc2nccc(CCC)c2)ccc1") == "c1ccc(Oc2ccccn2)cc1"
    assert scaffold("CCO") == scaffold("CCCC") == ""
    assert scaffold("O=C1N[C@H](C2CCCCC2)CO1") != scaffold("O=C1N[C@@H](C2CCCCC2)CO1")
    alone = "CC(c1cccs1)=[N+]1[N-]C(N)=[S+][AlH3-]12[OH+]B(c1ccccc1)[OH+]2"
    assert scaffold(alone) == f"alone: {alone}", "a scaffold that RDKit cannot compute"


@pytest.mark.processes
def test_processes_give_what_one_gives(monkeypatch):
    smiles = [*ODD, *BROKEN] * 8
    alone = featurise(smiles, scaffolds=True)
    monkeypatch.setattr(features, "MIN_ROWS", 0)
    many = featurise(smiles, scaffolds=True)
    assert many[1:] == alone[1:]
    for name in ("atoms", "bonds", "ends"):
        assert torch.equal(getattr(many.molecules, name), getattr(alone.molecules, name))


def test_nothing_imports_ogb():
    """It would contact the network."""
    code = """
import sys
from equipool.experiments.molecules.features import featurise
assert featurise(["CCO"]).rows == [0] and "ogb" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
