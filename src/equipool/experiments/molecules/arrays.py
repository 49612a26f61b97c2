"""All molecules of a data set, and a batch of some of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.molecules.data.graphs import MoleculeSet
from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.packing import Capacity


@dataclass(frozen=True, eq=False)
class MoleculeArrays:
    """A data set, its bonds in the order of the atoms that they lead to.

    Bonds and atoms are counted from 0 in each molecule, in as few bytes as the largest needs.
    """

    atoms: Tensor  # [V, 9] uint8
    atom_start: Tensor  # [n + 1] int64
    bonds: Tensor  # [E, 3] uint8
    bond_start: Tensor  # [n + 1] int64
    source: Tensor  # [E] atom that a bond comes from
    target: Tensor  # [E] atom that it leads to
    by_source: Tensor  # [E] the molecule's bonds in the order of their sources
    first_bond: Tensor  # [V] first of the molecule's bonds that lead to an atom
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
            raise ValueError(
                "ends: an atom has more bonds in one direction than in the other, expected every "
                "bond in both"
            )
        first_bond = degree.cumsum(0) - degree
        by_source = torch.argsort(source, stable=True)
        begin = molecules.bond_start[:-1].repeat_interleave(molecules.num_atoms)
        return cls(
            atoms=_readable(molecules.atoms),
            atom_start=molecules.atom_start,
            bonds=_readable(molecules.bonds[order]),
            bond_start=molecules.bond_start,
            source=_readable(_short(source - molecules.atom_start[owner])),
            target=_readable(_short(target - molecules.atom_start[owner])),
            by_source=_readable(_short(by_source - molecules.bond_start[owner])),
            first_bond=_readable(_short(first_bond - begin)),
            labels=molecules.labels,
            longest=int(molecules.num_atoms.max()) if len(molecules) else 0,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in content.items() if isinstance(value, Tensor)}

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def to(self, device: torch.device) -> MoleculeArrays:
        """The same on a device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return MoleculeArrays(**moved, longest=self.longest)


def _short(numbers: Tensor) -> Tensor:
    """In 16 bits where they fit."""
    fits = not len(numbers) or int(numbers.max()) <= torch.iinfo(torch.int16).max
    return numbers.to(torch.int16 if fits else torch.int32)


def _readable(rows: Tensor) -> Tensor:
    """With a row where there is none: padding reads the first one."""
    return rows if len(rows) else rows.new_zeros(1, *rows.shape[1:])


class _Rows(NamedTuple):
    """Rows of several molecules side by side, in a fixed number of slots."""

    ptr: Tensor  # [G + 1] slots of each molecule
    molecule: Tensor  # [slots] place in the batch; G for padding
    mask: Tensor  # [slots] True = real
    row: Tensor  # [slots] row of the data set; 0 for padding
    first: Tensor  # [slots] first slot of the molecule; 0 for padding


def _rows(start: Tensor, molecules: Tensor, slots: int) -> _Rows:
    """The rows of `molecules [G]`, -1 where there is none, one after the other."""
    real, known = molecules >= 0, molecules.clamp(min=0)
    begin = start[known]
    sizes = torch.where(real, start[known + 1] - begin, 0)
    ptr = functional.pad(sizes.cumsum(0), (1, 0))
    slot = torch.arange(slots, device=start.device)
    molecule = torch.searchsorted(ptr[1:], slot, right=True)
    mask = molecule < len(molecules)
    place = molecule.clamp(max=len(molecules) - 1)
    first = torch.where(mask, ptr[place], 0)
    row = torch.where(mask, begin[place] + slot - first, 0)
    return _Rows(ptr, molecule, mask, row, first)


def assemble(arrays: MoleculeArrays, molecules: Tensor, capacity: Capacity) -> MoleculeBatch:
    """The batch of some molecules. Its shapes are those of the capacity, and nothing waits for the
    device.

    Args:
        arrays: the data set, on the device of `molecules`.
        molecules: their positions in the data set, `[G]`, -1 where there is none. They must fit
            into the capacity.
        capacity: atoms and bonds of the batch.
    """
    atom = _rows(arrays.atom_start, molecules, capacity.atoms)
    bond = _rows(arrays.bond_start, molecules, capacity.bonds)
    num_bonds = bond.ptr[-1:]
    # where the atoms, and the bonds, of the molecule begin that a bond, or an atom, belongs to
    place = bond.molecule.clamp(max=len(molecules) - 1)
    first_atom = atom.ptr[place]
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


def _masked(values: Tensor, rows: _Rows) -> Tensor:
    """The rows of `values [n, F]`, zero for padding."""
    return torch.where(rows.mask.unsqueeze(-1), values[rows.row], 0)
