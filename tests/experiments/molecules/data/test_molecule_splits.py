import csv
import gzip
import os
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from molecule_files import SHARED, needs_shared_data

from equipool.experiments.molecules.data import ColumnSplit, RandomSplit, ScaffoldSplit
from equipool.experiments.molecules.data.featurize import parse_smiles, unsanitised
from equipool.experiments.molecules.data.molecule_set import PARTS
from equipool.experiments.molecules.data.splits import GroupIndex


def scaffold_split_of_ogb(scaffolds, train=0.8, valid=0.1):
    """As the code behind OGB's split does it, with dictionaries and lists."""
    members = defaultdict(list)
    for at, scaffold in enumerate(scaffolds):
        members[scaffold].append(at)
    ordered = sorted(members.values(), key=lambda found: (len(found), found[0]), reverse=True)
    parts = {"train": [], "valid": [], "test": []}
    for found in ordered:
        if len(parts["train"]) + len(found) > train * len(scaffolds):
            so_far = len(parts["train"]) + len(parts["valid"])
            full = so_far + len(found) > (train + valid) * len(scaffolds)
            parts["test" if full else "valid"] += found
        else:
            parts["train"] += found
    return parts


def as_lists(parts):
    return {name: np.flatnonzero(parts == at).tolist() for at, name in enumerate(PARTS)}


@given(st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=60))
def test_scaffold_split_is_ogbs(scaffolds):
    expected = {name: sorted(found) for name, found in scaffold_split_of_ogb(scaffolds).items()}
    assert as_lists(ScaffoldSplit().assign(GroupIndex(scaffolds))) == expected


@pytest.mark.parametrize(("train", "valid"), [(0.5, 0.25), (0.6, 0.4), (1.0, 0.0)])
def test_scaffold_split_has_the_shares_asked_for(train, valid):
    scaffolds = list("aaaabbbccd") + [f"alone {at}" for at in range(90)]
    found = as_lists(ScaffoldSplit(train, valid).assign(GroupIndex(scaffolds)))
    expected = scaffold_split_of_ogb(scaffolds, train, valid)
    assert found == {name: sorted(positions) for name, positions in expected.items()}
    assert (len(found["train"]), len(found["valid"])) == (train * 100, valid * 100)


@needs_shared_data
@pytest.mark.skipif("EQUIPOOL_THOROUGH" not in os.environ, reason="takes half a minute")
def test_scaffold_split_of_molhiv_is_the_official_one():
    """All 41,127 molecules, those included that RDKit has come to refuse."""
    from rdkit import rdBase

    with gzip.open(SHARED / "molhiv.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    groups = GroupIndex()
    with rdBase.BlockLogs():
        for row in rows:
            smiles = row["smiles"]
            molecule, _ = parse_smiles(smiles, keep_unsanitised=True)
            groups.extend([ScaffoldSplit().group(molecule, smiles, "")])
    parts = ScaffoldSplit().assign(groups)
    assert [PARTS[part] for part in parts] == [row["split"] for row in rows]
    assert np.bincount(parts).tolist() == [32_901, 4_113, 4_113]


def scaffold(smiles):
    return ScaffoldSplit().group(parse_smiles(smiles)[0], smiles, "")


def test_scaffolds_are_rings_and_what_links_them():
    assert scaffold("Cc1cc(Oc2nccc(CCC)c2)ccc1") == "c1ccc(Oc2ccccn2)cc1"
    assert scaffold("CCO") == scaffold("CCCC") == ""
    assert scaffold("Cc1ccccc1") == scaffold("Oc1ccccc1CC")
    left, right = "O=C1N[C@H](C2CCCCC2)CO1", "O=C1N[C@@H](C2CCCCC2)CO1"
    assert "@" in scaffold(left)
    assert scaffold(left) != scaffold(right)


def test_a_molecule_whose_scaffold_cannot_be_taken_is_alone():
    first, second = (
        "CC(c1cccs1)=[N+]1[N-]C(N)=[S+][AlH3-]12[OH+]B(c1ccccc1)[OH+]2",
        "CC(c1ccccn1)=[N+]1[N-]C(N)=[S+][AlH3-]12[OH+]B(c1ccccc1)[OH+]2",
    )
    groups = [ScaffoldSplit().group(unsanitised(smiles), smiles, "") for smiles in (first, second)]
    assert groups == [f"alone: {first}", f"alone: {second}"]


@pytest.mark.parametrize("number", [1, 2, 9, 100, 1001])
def test_random_split_has_its_shares(number):
    parts = RandomSplit(seed=3).assign(GroupIndex([""] * number))
    assert len(parts) == number
    counts = np.bincount(parts, minlength=3)
    assert counts[0] == round(0.8 * number)
    assert counts[:2].sum() == round(0.9 * number)


def test_random_split_follows_its_seed():
    groups = GroupIndex([""] * 200)
    first = RandomSplit(seed=0).assign(groups)
    assert (RandomSplit(seed=0).assign(groups) == first).all()
    assert (RandomSplit(seed=1).assign(groups) != first).any()
    assert 0 < (first[:100] == 2).sum() < 20, "a shuffled test part is not at one end"


def test_a_column_says_the_split():
    split = ColumnSplit("fold")
    assert split.column == "fold"
    cells = ["train", "Test", " valid ", "val", "dev", "validation", "training"]
    for cell in cells:
        split.check_cell(cell)
    groups = GroupIndex(split.group(None, "", cell) for cell in cells)
    assert [PARTS[part] for part in split.assign(groups)] == [
        "train", "test", "valid", "valid", "valid", "valid", "train",
    ]  # fmt: skip
    for cell in ("", "trian", "0"):
        with pytest.raises(ValueError, match=f"split column 'fold': .*found '{cell}'"):
            split.check_cell(cell)


@pytest.mark.parametrize("split", [ScaffoldSplit, RandomSplit])
@pytest.mark.parametrize(("train", "valid"), [(0.0, 0.5), (0.8, 0.3), (0.8, -0.1)])
def test_shares_that_make_no_sense_are_refused(split, train, valid):
    with pytest.raises(ValueError, match="train and valid: expected shares"):
        split(train=train, valid=valid)


@given(st.lists(st.text(max_size=3), max_size=30))
def test_groups_number_names_as_they_appear(names):
    groups = GroupIndex(names[:10])
    groups.extend(names[10:])
    order = list(dict.fromkeys(names))
    assert groups.names == order
    assert groups.ids.tolist() == [order.index(name) for name in names]
    assert len(groups) == len(names)
