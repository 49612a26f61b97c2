"""Batches put together on the device, against the molecules one by one."""

from dataclasses import replace

import pytest
import torch

from equipool.experiments.molecules import storage
from equipool.experiments.molecules.batching import Capacity
from equipool.experiments.molecules.data import MoleculeSet
from equipool.experiments.molecules.storage import (
    MoleculeArrays,
    Resident,
    Streamed,
    assemble,
    choose_storage,
)  # fmt: skip
from generated_molecules import generated, permuted

CPU = torch.device("cpu")
CAPACITY = Capacity(6, 50, 90)
SOME = torch.tensor([7, 3, 2, 40, -1, -1])
FULL = torch.tensor([7, 3, 2, 40, 8, 9])  # as many as there can be, but fewer atoms and bonds
each_batch = pytest.mark.parametrize("some", [SOME, FULL], ids=["few", "full"])


@pytest.fixture(params=["bonds in pairs", "bonds in any order"])
def molecules(request):
    found = generated(60)
    return found if request.param == "bonds in pairs" else permuted(found)


@each_batch
def test_it_holds_the_molecules_and_nothing_else(molecules, some):
    batch = assemble(MoleculeArrays.of(molecules), some, CAPACITY)
    assert batch.atoms.shape == (50, 9)
    assert batch.bonds.shape == (90, 3)
    atoms = bonds = 0
    for place, position in enumerate(some[some >= 0].tolist()):
        one = molecules.one(position)
        size, count = len(one.atoms), len(one.bonds)
        rows, columns = slice(atoms, atoms + size), slice(bonds, bonds + count)
        assert torch.equal(batch.atoms[rows], one.atoms)
        assert (batch.molecule[rows] == place).all()
        ends = torch.stack([batch.source, batch.target])[:, columns] - atoms
        found = torch.cat([ends.T, batch.bonds[columns].long()], dim=1)
        expected = torch.cat([one.ends.T.long(), one.bonds.long()], dim=1)
        assert sorted(found.tolist()) == sorted(expected.tolist())
        atoms, bonds = atoms + size, bonds + count
    assert atoms == int(batch.atom_mask.sum())
    assert batch.atom_mask[:atoms].all()
    assert bonds == int(batch.bond_mask.sum())
    assert batch.bond_mask[:bonds].all()
    assert (batch.molecule[atoms:] == 6).all()
    assert torch.equal(batch.molecule_mask, some >= 0)
    labels = Resident(MoleculeArrays.of(molecules), CPU).batch({"molecules": some}, CAPACITY).labels
    expected = molecules.labels[some].masked_fill((some < 0)[:, None], torch.nan)
    torch.testing.assert_close(labels, expected, equal_nan=True)
    assert batch.longest == int(molecules.num_atoms.max())


@each_batch
def test_offsets_and_orders_are_what_they_say(molecules, some):
    batch = assemble(MoleculeArrays.of(molecules), some, CAPACITY)
    real = int(batch.bond_mask.sum())
    source, target = batch.source[:real], batch.target[:real]
    for atom in range(CAPACITY.atoms):
        mine = slice(int(batch.bond_ptr[atom]), int(batch.bond_ptr[atom + 1]))
        assert torch.equal(torch.arange(real)[mine], (target == atom).nonzero().squeeze(1))
        assert (source[batch.by_source[:real]][mine] == atom).all()
    assert batch.by_source.sort().values.tolist() == list(range(CAPACITY.bonds))
    assert batch.by_source[real:].tolist() == list(range(real, CAPACITY.bonds))
    ends = batch.atom_ptr.tolist()
    for place in range(7):
        mine = torch.arange(ends[place], ends[place + 1])
        assert torch.equal(mine, (batch.molecule == place).nonzero().squeeze(1))
    assert ends[-1] == CAPACITY.atoms


def test_long_molecules_are_counted_in_more_bits():
    size = 40_000
    ends = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
    both = torch.cat([ends, ends.flip(0)], dim=1).to(torch.int32)
    chain = MoleculeSet(
        torch.zeros(size, 9, dtype=torch.uint8),
        torch.zeros(both.shape[1], 3, dtype=torch.uint8),
        both, torch.tensor([0, size]), torch.tensor([0, both.shape[1]]),
        torch.zeros(1, 1), ("one",), "classification",
        {part: torch.zeros(0, dtype=torch.int64) for part in ("train", "valid", "test")},
        torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip
    batch = assemble(MoleculeArrays.of(chain), torch.tensor([0]), Capacity(1, size, both.shape[1]))
    assert int(batch.source.max()) == int(batch.target.max()) == size - 1
    assert int(batch.by_source.max()) == both.shape[1] - 1


def test_bonds_in_one_direction_are_refused():
    molecules = generated(9)
    half = {"ends": molecules.ends[:, ::2], "bonds": molecules.bonds[::2]}
    one_way = replace(molecules, **half, bond_start=molecules.bond_start // 2)
    with pytest.raises(ValueError, match="expected every bond in both"):
        MoleculeArrays.of(one_way)


def test_streamed_is_resident(molecules):
    """The same numbers, padding included, whatever is sent beforehand."""
    arrays = MoleculeArrays.of(molecules)
    steps = torch.stack([SOME, SOME.flip(0), torch.full((6,), -1)])
    found = []
    for kind in (Resident, Streamed):
        stored = kind(arrays, CPU)
        pieces = stored.send(steps, CAPACITY)
        assert all(len(values) == 3 for values in pieces.values())
        each = [{name: values[i] for name, values in pieces.items()} for i in range(3)]
        found.append([stored.batch(one, CAPACITY) for one in each])
    for resident, streamed in zip(*found, strict=True):
        for one, other in ((resident.labels, streamed.labels),
                           (vars(resident.molecules), vars(streamed.molecules))):  # fmt: skip
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert resident.molecules.longest == streamed.molecules.longest


def test_what_fits_is_resident(monkeypatch):
    arrays = MoleculeArrays.of(generated(9))
    assert isinstance(choose_storage(arrays, CPU), Resident)
    monkeypatch.setattr(MoleculeArrays, "to", lambda self, device: self)
    for free, kind in ((4 * arrays.num_bytes, Resident), (4 * arrays.num_bytes - 4, Streamed)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert isinstance(choose_storage(arrays, torch.device("cuda")), kind)
    assert storage.MEMORY_SHARE == 0.25
