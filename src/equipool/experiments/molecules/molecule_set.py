"""Molecules as flat tensors, and batches of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

# Sizes of OGB's categorical features. Atoms: element, chirality, degree, charge, hydrogens, radical
# electrons, hybridisation, aromatic, in a ring. Bonds: type, stereo, conjugated.
ATOM_CATEGORIES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BOND_CATEGORIES = (5, 6, 2)
PARTS = ("train", "valid", "test")
TENSORS = ("atoms", "bonds", "ends", "atom_start", "bond_start", "labels", "parts")


@dataclass(eq=False)  # not frozen: Fabric copies the arguments of a network field by field
class MoleculeBatch:
    """$G$ molecules as one graph of $V$ atoms. Every bond is there in both directions, $E$ in all,
    sorted by target."""

    atoms: Tensor  # [V, 9] uint8, categories of OGB's features
    molecule: Tensor  # [V] int64, molecule of each atom, ascending
    atom_ptr: Tensor  # [G + 1] int64, offsets of the molecules' atoms
    bonds: Tensor  # [E, 3] uint8, categories of OGB's features
    source: Tensor  # [E] int64, source atom of each bond
    bond_ptr: Tensor  # [V + 1] int64, offsets of the bonds to each atom


@dataclass(frozen=True, eq=False)
class MoleculeSet:
    """$G$ molecules with all their atoms and all their bonds, one molecule after the other.

    Atoms are numbered from 0 in each molecule. Every bond is there in both directions, and the
    bonds of a molecule are sorted by target.
    """

    atoms: Tensor  # [V, 9] uint8, categories of OGB's features
    bonds: Tensor  # [E, 3] uint8, categories of OGB's features
    ends: Tensor  # [2, E] int32, source and target of each bond
    atom_start: Tensor  # [G + 1] int64, offsets of the molecules' atoms
    bond_start: Tensor  # [G + 1] int64, offsets of the molecules' bonds
    labels: Tensor  # [G, L] float32, NaN where missing
    parts: Tensor  # [G] uint8, index into PARTS; a molecule of no part has a larger number
    label_names: tuple[str, ...] = ()
    kind: str = "classification"  # or regression

    @classmethod
    def of(
        cls, num_atoms: Tensor, num_bonds: Tensor, atoms: Tensor, bonds: Tensor, ends: Tensor
    ) -> Self:
        """Molecules of `num_atoms [G]` and `num_bonds [G]`, without labels and in no part, from
        `ends [E, 2]`. The bonds of a molecule may have any order."""
        atom_start, bond_start = offsets_of(num_atoms), offsets_of(num_bonds)
        target = ends[:, 1] + atom_start[:-1].repeat_interleave(num_bonds)
        order = torch.argsort(target, stable=True)
        number = len(num_atoms)
        parts = torch.full((number,), len(PARTS), dtype=torch.uint8)
        return cls(
            atoms, bonds[order], ends[order].T, atom_start, bond_start, torch.zeros(number, 0),
            parts,
        )  # fmt: skip

    def __len__(self) -> int:
        return self.atom_start.shape[0] - 1

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    def positions(self, part: str) -> Tensor:
        """The positions of the molecules of a part."""
        return (self.parts == PARTS.index(part)).nonzero().squeeze(1)

    def to(self, device: torch.device) -> MoleculeSet:
        """The same on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in TENSORS})

    def batch(self, positions: Tensor) -> MoleculeBatch:
        """The molecules at `positions [G']`, which may repeat, as one graph."""
        atom_rows, atom_ptr = ranges(self.atom_start, positions)
        bond_rows, bond_ptr = ranges(self.bond_start, positions)
        first_atom = atom_ptr[:-1].repeat_interleave(bond_ptr.diff())
        source, target = self.ends[:, bond_rows] + first_atom
        atom = torch.arange(len(atom_rows) + 1, device=positions.device)
        return MoleculeBatch(
            atoms=self.atoms[atom_rows],
            molecule=torch.repeat_interleave(atom_ptr.diff()),
            atom_ptr=atom_ptr,
            bonds=self.bonds[bond_rows],
            source=source,
            bond_ptr=torch.searchsorted(target, atom),
        )


def ranges(start: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The concatenated ranges `start[p], ..., start[p + 1] - 1` for each `p` in `positions`, and
    the offsets of the ranges.

    Example:
        >>> ranges(torch.tensor([0, 2, 5]), torch.tensor([1, 0]))
        (tensor([2, 3, 4, 0, 1]), tensor([0, 3, 5]))
    """
    sizes = start[positions + 1] - start[positions]
    offsets = offsets_of(sizes)
    shift = (start[positions] - offsets[:-1]).repeat_interleave(sizes)
    return torch.arange(shift.shape[0], device=start.device) + shift, offsets


def offsets_of(sizes: Tensor) -> Tensor:
    """The int64 offsets of consecutive ranges of these sizes, and the end of the last.

    Example:
        >>> offsets_of(torch.tensor([2, 3]))
        tensor([0, 2, 5])
    """
    return functional.pad(sizes.cumsum(0, dtype=torch.int64), (1, 0))
