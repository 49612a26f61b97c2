from dataclasses import replace

import pytest
import torch
from molecule_files import ogb

from equipool.experiments.molecules.data import MoleculeSet
from equipool.experiments.molecules.data.molecule_set import ATOM_CATEGORIES, BOND_CATEGORIES


def make_set():
    """Four molecules: three atoms in a row, one atom, none, and two atoms."""
    return MoleculeSet(
        atoms=torch.arange(6, dtype=torch.uint8).view(6, 1).repeat(1, 9) % 2,
        bonds=torch.tensor([[0, 0, 0]] * 2 + [[1, 0, 0]] * 2 + [[2, 0, 1]] * 2).byte(),
        ends=torch.tensor([[0, 1, 1, 2, 0, 1], [1, 0, 2, 1, 1, 0]], dtype=torch.int16),
        atom_start=torch.tensor([0, 3, 4, 4, 6]),
        bond_start=torch.tensor([0, 4, 4, 4, 6]),
        labels=torch.tensor([[0.0, 1.0], [1.0, torch.nan], [0.0, 0.0], [1.0, 1.0]]),
        label_names=("A", "B"),
        kind="classification",
        split={
            "train": torch.tensor([0, 3]),
            "valid": torch.tensor([1]),
            "test": torch.tensor([2]),
        },
        source_rows=torch.tensor([0, 1, 4, 5]),
    )


@pytest.mark.parametrize("positions", [[3, 0], [2], [], [1, 1, 0], [0, 1, 2, 3]])
def test_a_selection_has_the_molecules_asked_for(positions):
    """Against slicing the arrays one molecule after the other."""
    molecules = make_set()
    chosen = molecules.select(torch.tensor(positions, dtype=torch.int64))
    assert len(chosen) == len(positions)
    for new, old in enumerate(positions):
        for name, start in (("atoms", "atom_start"), ("bonds", "bond_start")):
            begin, end = getattr(molecules, start)[old : old + 2]
            new_begin, new_end = getattr(chosen, start)[new : new + 2]
            expected = getattr(molecules, name)[begin:end]
            assert torch.equal(getattr(chosen, name)[new_begin:new_end], expected)
            if name == "bonds":
                ends = molecules.ends[:, begin:end]
                assert torch.equal(chosen.ends[:, new_begin:new_end], ends)
        assert torch.equal(chosen.labels[new].nan_to_num(7), molecules.labels[old].nan_to_num(7))
        assert chosen.source_rows[new] == molecules.source_rows[old]
        for part in molecules.split:
            assert (new in chosen.split[part]) == (old in molecules.split[part])


def test_one_molecule():
    molecules = make_set()
    assert molecules.num_atoms.tolist() == [3, 1, 0, 2]
    assert molecules.num_bonds.tolist() == [4, 0, 0, 2]
    assert molecules.one(3).ends.tolist() == [[0, 1], [1, 0]]
    for position in (-1, 4):
        with pytest.raises(IndexError, match="positions: expected 0 to 3"):
            molecules.one(position)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("atoms", torch.zeros(6, 8, dtype=torch.uint8), "atoms: expected shape"),
        ("atoms", torch.zeros(6, 9), "atoms: expected torch.uint8, found torch.float32"),
        ("atoms", torch.full((6, 9), 2, dtype=torch.uint8), "atoms: column 7 has 2 categories"),
        ("bonds", torch.full((6, 3), 5, dtype=torch.uint8), "bonds: column 0 has 5 categories"),
        ("ends", torch.zeros(2, 5, dtype=torch.int16), "ends: expected shape"),
        ("ends", torch.zeros(2, 6, dtype=torch.int64), "torch.int16 or torch.int32"),
        ("ends", torch.full((2, 6), 2, dtype=torch.int16), "ends: a bond refers to an atom"),
        ("ends", torch.full((2, 6), -1, dtype=torch.int32), "ends: a bond refers to an atom"),
        ("atom_start", torch.tensor([0, 3, 4, 4, 5]), "atom_start: expected offsets"),
        ("atom_start", torch.tensor([0, 4, 3, 4, 6]), "atom_start: expected offsets"),
        ("bond_start", torch.tensor([1, 4, 4, 4, 6]), "bond_start: expected offsets"),
        ("bond_start", torch.tensor([0, 4, 4, 6]), "bond_start: expected shape"),
        ("labels", torch.zeros(4, 3), "labels: expected shape"),
        ("label_names", ("A",), "labels: expected shape"),
        ("source_rows", torch.zeros(3, dtype=torch.int64), "source_rows: expected shape"),
        ("kind", "ranking", "kind: expected one of"),
        ("split", {"train": torch.tensor([0])}, "split: expected the parts"),
    ],
)
def test_what_does_not_fit_is_refused(name, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        replace(make_set(), **{name: value})


@pytest.mark.parametrize(
    ("train", "message"),
    [([4], "outside"), ([-1], "outside"), ([1], "in two parts"), ([0, 0], "in two parts")],
)
def test_wrong_splits_are_refused(train, message):
    split = make_set().split | {"train": torch.tensor(train)}
    with pytest.raises(ValueError, match=message):
        replace(make_set(), split=split)


def test_bonds_are_checked_in_every_block(monkeypatch):
    """The last molecule's, too, when a block holds one."""
    monkeypatch.setattr("equipool.experiments.molecules.data.molecule_set.CHECK_SIZE", 1)
    molecules = make_set()
    wrong = molecules.ends.clone()
    wrong[0, 5] = 2
    with pytest.raises(ValueError, match="ends"):
        replace(molecules, ends=wrong)


def test_the_categories_are_those_of_ogb():
    features = ogb("utils.features")
    assert features.get_atom_feature_dims() == list(ATOM_CATEGORIES)
    assert features.get_bond_feature_dims() == list(BOND_CATEGORIES)
