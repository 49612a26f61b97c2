"""Molecules cut into batches, against a loop over them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipool.experiments.molecules.batching import Capacity, Epochs, choose_capacity, pack
from generated_molecules import generated

SIZES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30)


def plain_pack(sizes, capacity):
    """One molecule after the other goes to the last batch, or to a new one."""
    batches = []
    for molecule, (atoms, bonds) in enumerate(sizes):
        last = batches[-1] if batches else None
        if last is not None:
            fits = (
                len(last) < capacity.molecules
                and sum(sizes[i][0] for i in last) + atoms <= capacity.atoms
                and sum(sizes[i][1] for i in last) + bonds <= capacity.bonds
            )
        if last is None or not fits:
            batches.append([molecule])
        else:
            last.append(molecule)
    return batches


@given(SIZES, st.integers(1, 6), st.integers(9, 30), st.integers(9, 30))
def test_it_is_the_loop(sizes, molecules, atoms, bonds):
    capacity = Capacity(molecules, atoms, bonds)
    columns = torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2)
    found = pack(columns[:, 0], columns[:, 1], capacity)
    assert found.shape[1:] == (molecules,)
    assert [[i for i in row if i >= 0] for row in found.tolist()] == plain_pack(sizes, capacity)
    for row in found.tolist():
        assert row == sorted(row, key=lambda i: i < 0)  # padding comes last


def test_a_molecule_that_fits_nowhere_is_refused():
    with pytest.raises(ValueError, match="has 7 atoms or bonds, expected 6 or fewer"):
        pack(torch.tensor([3, 7]), torch.tensor([1, 1]), Capacity(2, 6, 6))


def test_a_capacity_that_is_chosen_holds_what_it_should():
    generator = torch.Generator().manual_seed(0)
    atoms = torch.randint(5, 60, (5000,), generator=generator)
    bonds = 2 * atoms + torch.randint(0, 9, (5000,), generator=generator)
    capacity = choose_capacity(32, atoms, bonds)
    assert capacity.molecules == 32
    assert atoms.max() <= capacity.atoms <= 1.4 * 32 * atoms.float().mean()
    full = (pack(atoms, bonds, capacity) >= 0).all(1)
    assert full.float().mean() > 0.97


def test_a_single_molecule_needs_room_for_the_largest():
    atoms = torch.tensor([3, 90, 4])
    capacity = choose_capacity(1, atoms, torch.zeros(3, dtype=torch.int64))
    assert capacity.atoms >= 90
    assert capacity.bonds >= 1  # shapes of none are trouble


def test_a_capacity_that_is_given_is_kept():
    atoms, bonds = torch.tensor([3, 9]), torch.tensor([4, 16])
    assert choose_capacity(5, atoms, bonds, (9, 20)) == Capacity(5, 9, 20)
    with pytest.raises(ValueError, match="bond_capacity is 15, expected 16 or more"):
        choose_capacity(5, atoms, bonds, (9, 15))
    with pytest.raises(ValueError, match="atom_capacity is 8, expected 9 or more"):
        choose_capacity(5, atoms, bonds, (8, 16))


def epochs(seed=0, batch_size=4):
    molecules = generated(60)
    training = molecules.split["train"]
    atoms, bonds = molecules.num_atoms[training], molecules.num_bonds[training]
    return Epochs(training, atoms, bonds, choose_capacity(batch_size, atoms, bonds), seed)


def flat(rows):
    return rows[rows >= 0].tolist()


def test_every_molecule_once_in_every_epoch():
    found = epochs()
    step = 0
    for epoch in range(3):
        length = len(found.epoch(epoch))
        assert found.locate(step) == (epoch, 0)
        assert found.locate(step + length - 1) == (epoch, length - 1)
        rows = found.batches(step, length)
        assert sorted(flat(rows)) == generated(60).split["train"].tolist()
        step += length


def test_orders_belong_to_epoch_and_seed():
    length = len(epochs().epoch(0))
    first, second = epochs().batches(0, length), epochs().batches(length, length)
    assert flat(first) != flat(second)
    assert flat(first) != flat(epochs(seed=1).batches(0, length))


def test_a_step_is_the_same_however_it_is_asked_for():
    whole = epochs().batches(0, 100)
    late = epochs()
    assert torch.equal(late.batches(70, 20), whole[70:90])
    assert torch.equal(late.batches(3, 1), whole[3:4])
    assert torch.equal(epochs().batches(99, 1), whole[99:])


def test_nothing_to_train_on_is_said():
    none = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="no molecules to train on"):
        Epochs(none, none, none, Capacity(1, 1, 1), 0)
