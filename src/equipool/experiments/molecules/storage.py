"""A data set as tensors, batches assembled from it on the device or on the host, and predictions
for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.experiments.molecules.batching import Capacity, choose_capacity, pack
from equipool.experiments.molecules.data.molecule_set import MoleculeSet
from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.training.progress import track
from equipool.training.task import Batch

MEMORY_SHARE = 0.25  # of a GPU's free memory that a data set may take
MAX_MOLECULES = 512  # per batch of a prediction
MAX_ATOMS = 2**17  # per batch, if every molecule were padded to the longest
BATCHES_SENT = 16  # at a time
BATCH_TENSORS = [field.name for field in fields(MoleculeBatch) if field.type == "Tensor"]


@dataclass(frozen=True, eq=False)
class MoleculeArrays:
    """A data set with its bonds sorted by target atom.

    Bonds and atoms are numbered from 0 in each molecule, in 16 bits if possible.
    """

    atoms: Tensor  # [V, 9] uint8
    atom_start: Tensor  # [n + 1] int64
    bonds: Tensor  # [E, 3] uint8
    bond_start: Tensor  # [n + 1] int64
    source: Tensor  # [E] source atom of a bond
    target: Tensor  # [E] target atom of a bond
    by_source: Tensor  # [E] the molecule's bonds in the order of their sources
    first_bond: Tensor  # [V] the molecule's first bond with this target atom
    labels: Tensor  # [n, L] float32, NaN where missing
    longest: int  # atoms of the largest molecule

    @classmethod
    def of(cls, molecules: MoleculeSet) -> MoleculeArrays:
        """The arrays of a data set, on the CPU."""
        num_atoms = molecules.atoms.shape[0]
        owner = torch.repeat_interleave(molecules.bond_start.diff())
        source, target = molecules.ends.long() + molecules.atom_start[owner]
        order = torch.argsort(target, stable=True)
        source, target = source[order], target[order]
        degree = torch.bincount(target, minlength=num_atoms)
        if not torch.equal(degree, torch.bincount(source, minlength=num_atoms)):
            raise ValueError("ends: expected every bond in both directions")
        first_bond = degree.cumsum(0) - degree
        by_source = torch.argsort(source, stable=True)
        begin = molecules.bond_start[:-1].repeat_interleave(molecules.num_atoms)
        return cls(
            atoms=_not_empty(molecules.atoms),
            atom_start=molecules.atom_start,
            bonds=_not_empty(molecules.bonds[order]),
            bond_start=molecules.bond_start,
            source=_compact(source - molecules.atom_start[owner]),
            target=_compact(target - molecules.atom_start[owner]),
            by_source=_compact(by_source - molecules.bond_start[owner]),
            first_bond=_compact(first_bond - begin),
            labels=molecules.labels,
            longest=int(molecules.num_atoms.max()) if len(molecules) else 0,
        )

    @property
    def num_bytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def to(self, device: torch.device) -> MoleculeArrays:
        """The same on a device."""
        tensors = {name: v.to(device) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return MoleculeArrays(**tensors, longest=self.longest)


class LabelledBatch(NamedTuple):
    """Molecules and their labels."""

    molecules: MoleculeBatch
    labels: Tensor  # [G, L], NaN where missing


class Storage(ABC):
    """Provides batches in two stages: data sent to the device in advance, for many steps at once,
    and the batch made from it in each step."""

    def __init__(self, arrays: MoleculeArrays, device: torch.device) -> None:
        self.arrays, self.device = arrays, device

    @abstractmethod
    def send(self, molecules: Tensor, capacity: Capacity) -> Batch:
        """Send what the steps with the molecules at these positions need: `[num_steps, G]` on the
        CPU, -1 for empty places. Returns tensors with a leading dimension of `num_steps`."""

    @abstractmethod
    def batch(self, sent: Batch, capacity: Capacity) -> LabelledBatch:
        """The batch of one step, from what was sent for it."""


class Resident(Storage):
    """The whole data set is on the device. Only positions are sent; batches are assembled there."""

    def __init__(self, arrays: MoleculeArrays, device: torch.device) -> None:
        super().__init__(arrays.to(device), device)

    def send(self, molecules: Tensor, capacity: Capacity) -> Batch:
        return {"molecules": send(molecules, self.device)}

    def batch(self, sent: Batch, capacity: Capacity) -> LabelledBatch:
        return _labelled(self.arrays, sent["molecules"], capacity)


class Streamed(Storage):
    """The data set is on the host. Batches are assembled there and sent."""

    def send(self, molecules: Tensor, capacity: Capacity) -> Batch:
        steps = [_labelled(self.arrays, step, capacity) for step in molecules]
        stacked = {
            name: torch.stack([getattr(step.molecules, name) for step in steps])
            for name in BATCH_TENSORS
        }
        stacked["labels"] = torch.stack([step.labels for step in steps])
        return {name: send(values, self.device) for name, values in stacked.items()}

    def batch(self, sent: Batch, capacity: Capacity) -> LabelledBatch:
        tensors = {name: sent[name] for name in BATCH_TENSORS}
        molecules = MoleculeBatch(**tensors, longest=self.arrays.longest)
        return LabelledBatch(molecules, sent["labels"])


def choose_storage(arrays: MoleculeArrays, device: torch.device) -> Storage:
    """`Resident` if the data set fits, else `Streamed`."""
    if device.type != "cuda":
        return Resident(arrays, device)
    free, _ = torch.cuda.mem_get_info(device)
    fits = arrays.num_bytes <= MEMORY_SHARE * free
    return Resident(arrays, device) if fits else Streamed(arrays, device)


def send(values: Tensor, device: torch.device) -> Tensor:
    """Move to the device without waiting for it."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def assemble(arrays: MoleculeArrays, molecules: Tensor, capacity: Capacity) -> MoleculeBatch:
    """A batch of the molecules at these positions of the data set, `[G]` on its device; -1 for
    empty places. They must fit into the capacity, on which alone the shapes depend. Nothing waits
    for the device."""
    atom = _rows(arrays.atom_start, molecules, capacity.atoms)
    bond = _rows(arrays.bond_start, molecules, capacity.bonds)
    num_bonds = bond.ptr[-1:]
    # the first atom of each bond's molecule, and the first bond of each atom's
    first_atom = atom.ptr[bond.molecule.clamp(max=len(molecules) - 1)]
    first_bond = bond.ptr[atom.molecule.clamp(max=len(molecules) - 1)]
    slot = torch.arange(capacity.bonds, device=molecules.device)
    bond_ptr = torch.where(atom.mask, arrays.first_bond[atom.row] + first_bond, num_bonds)
    return MoleculeBatch(
        atoms=_masked(arrays.atoms, atom),
        molecule=atom.molecule,
        atom_ptr=functional.pad(atom.ptr, (0, 1), value=capacity.atoms),
        atom_mask=atom.mask,
        bonds=_masked(arrays.bonds, bond),
        source=torch.where(bond.mask, arrays.source[bond.row] + first_atom, 0),
        target=torch.where(bond.mask, arrays.target[bond.row] + first_atom, capacity.atoms - 1),
        by_source=torch.where(bond.mask, arrays.by_source[bond.row] + bond.first, slot),
        bond_ptr=torch.cat([bond_ptr, num_bonds]),
        bond_mask=bond.mask,
        molecule_mask=molecules >= 0,
        longest=arrays.longest,
    )


def _labelled(arrays: MoleculeArrays, molecules: Tensor, capacity: Capacity) -> LabelledBatch:
    """The batch of the molecules at these positions, `[G]`. Empty places have no labels."""
    labels = arrays.labels[molecules.clamp(min=0)]
    labels = torch.where((molecules >= 0).unsqueeze(-1), labels, torch.nan)
    return LabelledBatch(assemble(arrays, molecules, capacity), labels)


@torch.no_grad()
def predict(
    network: nn.Module, storage: Storage, molecules: MoleculeSet, positions: Tensor
) -> Tensor:
    """The network's outputs for some molecules of a data set, in batches of one shape: `[n, L]`,
    float32, on the CPU, logits or numbers in the labels' units.

    The network is in evaluation mode, on the storage's device. The storage is that of `molecules`,
    which is on the CPU, as `positions [n]` are.
    """
    if not len(positions):
        return torch.zeros(0, molecules.num_labels)
    atoms, bonds = molecules.num_atoms, molecules.num_bonds
    fitting = max(MAX_ATOMS // max(int(atoms.max()), 1), 1)
    capacity = choose_capacity(min(MAX_MOLECULES, fitting, len(positions)), atoms, bonds)
    places = pack(atoms[positions], bonds[positions], capacity)
    chosen = torch.where(places < 0, -1, positions[places])
    steps = (
        {name: values[step] for name, values in sent.items()}
        for some in chosen.split(BATCHES_SENT)
        for sent in [storage.send(some, capacity)]
        for step in range(len(some))
    )
    outputs = [
        network(storage.batch(step, capacity).molecules).labels
        for step in track(steps, total=len(places))
    ]
    return torch.cat(outputs).float().cpu()[places.flatten() >= 0]


def predict_molecules(network: nn.Module, molecules: MoleculeSet, device: torch.device) -> Tensor:
    """The network's outputs for all molecules of a set, `[n, L]`. See `predict`."""
    storage = Resident(MoleculeArrays.of(molecules), device)
    return predict(network, storage, molecules, torch.arange(len(molecules)))


class _Rows(NamedTuple):
    """The concatenated rows of several molecules in a fixed number of slots."""

    ptr: Tensor  # [G + 1] offsets of the molecules' slots
    molecule: Tensor  # [slots] place in the batch; G for padding
    mask: Tensor  # [slots] True = real
    row: Tensor  # [slots] row of the data set; 0 for padding
    first: Tensor  # [slots] first slot of the molecule; 0 for padding


def _rows(start: Tensor, molecules: Tensor, slots: int) -> _Rows:
    """The rows of `molecules [G]`; -1 has none."""
    real, position = molecules >= 0, molecules.clamp(min=0)
    begin = start[position]
    sizes = torch.where(real, start[position + 1] - begin, 0)
    ptr = functional.pad(sizes.cumsum(0), (1, 0))
    slot = torch.arange(slots, device=start.device)
    molecule = torch.searchsorted(ptr[1:], slot, right=True)
    mask = molecule < len(molecules)
    place = molecule.clamp(max=len(molecules) - 1)
    first = torch.where(mask, ptr[place], 0)
    row = torch.where(mask, begin[place] + slot - first, 0)
    return _Rows(ptr, molecule, mask, row, first)


def _masked(values: Tensor, rows: _Rows) -> Tensor:
    """The rows of `values [n, F]`, zero for padding."""
    return torch.where(rows.mask.unsqueeze(-1), values[rows.row], 0)


def _compact(numbers: Tensor) -> Tensor:
    """Not empty, and in 16 bits if they fit, else in 32."""
    numbers = _not_empty(numbers)
    fits = int(numbers.max()) <= torch.iinfo(torch.int16).max
    return numbers.to(torch.int16 if fits else torch.int32)


def _not_empty(rows: Tensor) -> Tensor:
    """With a row of zeros if there are none, because padding reads the first row."""
    return rows if len(rows) else rows.new_zeros(1, *rows.shape[1:])
