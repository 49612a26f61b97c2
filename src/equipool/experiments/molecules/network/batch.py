"""A batch of molecules, as the networks read it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from equipool.experiments.molecules.network.segments import segment_sum, spread


class MoleculeBatch(NamedTuple):
    """Molecules side by side, padded to G molecules, V atoms and E bonds.

    The real ones come first. A bond is here once in each direction, and the bonds that lead to an
    atom lie side by side: those of atom v are `bond_ptr[v]:bond_ptr[v + 1]`. As there are as many
    that lead away from it, the same offsets hold for the bonds in the order of their sources.
    """

    atoms: Tensor  # [V, 9] uint8, categories of the atoms' features
    molecule: Tensor  # [V] int64 molecule of each atom, ascending; G for padding
    atom_ptr: Tensor  # [G + 2] int64 offsets of the molecules' atoms; the last are padding
    atom_mask: Tensor  # [V] bool, True = real
    bonds: Tensor  # [E, 3] uint8, categories of the bonds' features
    source: Tensor  # [E] int64 atom that a bond comes from; 0 for padding
    target: Tensor  # [E] int64 atom that it leads to, ascending; V - 1 for padding
    by_source: Tensor  # [E] int64 the bonds in the order of their sources; padding stays last
    bond_ptr: Tensor  # [V + 1] int64
    bond_mask: Tensor  # [E] bool
    molecule_mask: Tensor  # [G] bool
    longest: int  # no molecule has more atoms

    @property
    def num_molecules(self) -> int:
        """G, with padding."""
        return self.molecule_mask.shape[0]

    def at_sources(self, x: Tensor) -> Tensor:
        """For each bond the row of the atom that it comes from, `[V, C] -> [E, C]`."""
        return spread(x, self.source, self.bond_ptr, self.by_source)

    def sum_bonds(self, messages: Tensor) -> Tensor:
        """The sum over the bonds that lead to each atom, `[E, C] -> [V, C]`."""
        return segment_sum(messages, self.bond_ptr)

    def at_atoms(self, rows: Tensor) -> Tensor:
        """For each atom the row of its molecule, `[G + 1, C] -> [V, C]`; padding has the last."""
        return spread(rows, self.molecule, self.atom_ptr)

    def sum_atoms(self, x: Tensor) -> Tensor:
        """The sum over each molecule's atoms, `[V, C] -> [G + 1, C]`; the last is of padding."""
        return segment_sum(x, self.atom_ptr)
