"""A padded batch of molecules, and sums over its bonds and atoms.

On a GPU, `index_add` and the derivative of `index_select` add rows in an order that changes from
run to run, and so do the last digits. The bonds and atoms of a batch are sorted, so every sum here
is a sum over a segment, which always gives the same digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from equipool.checks import values_are_at_hand
from equipool.experiments.molecules.network.norm import RealRows
from equipool.potentials.base import wide
from equipool.sets import Sets, make_sets


@dataclass(eq=False)  # not frozen: Fabric copies the arguments of a network field by field
class MoleculeBatch:
    """Concatenated molecules, padded to G molecules, V atoms and E bonds. Padding comes last.

    Every bond is listed in both directions. Bonds are sorted by target: those to atom v are
    `bond_ptr[v]:bond_ptr[v + 1]`. An atom is the source of as many bonds, so the same offsets hold
    for the bonds sorted by source. What all layers derive from these is computed once.
    """

    atoms: Tensor  # [V, 9] uint8, categorical features
    molecule: Tensor  # [V] int64 molecule of each atom, ascending; G for padding
    atom_ptr: Tensor  # [G + 2] int64 offsets of the molecules' atoms; the last segment is padding
    atom_mask: Tensor  # [V] bool, True = real
    bonds: Tensor  # [E, 3] uint8, categorical features
    source: Tensor  # [E] int64 source atom; 0 for padding
    target: Tensor  # [E] int64 target atom, ascending; V - 1 for padding
    by_source: Tensor  # [E] int64 the bonds sorted by source; padding stays last
    bond_ptr: Tensor  # [V + 1] int64
    bond_mask: Tensor  # [E] bool
    molecule_mask: Tensor  # [G] bool
    longest: int  # no molecule has more atoms

    @property
    def num_molecules(self) -> int:
        """G, including padding."""
        return self.molecule_mask.shape[0]

    @cached_property
    def real_atoms(self) -> RealRows:
        """For normalising `[V, C]`."""
        return RealRows.of(self.atom_mask)

    @cached_property
    def real_molecules(self) -> RealRows:
        """For normalising `[G + 1, C]`, whose last row is padding."""
        return RealRows.of(functional.pad(self.molecule_mask, (0, 1)))

    @cached_property
    def atom_sets(self) -> Sets:
        """The atoms of each molecule."""
        return _sets(self.molecule, self.atom_ptr[:-1])

    @cached_property
    def bond_sets(self) -> Sets:
        """The bonds to each atom."""
        num_atoms = self.atom_mask.shape[0]
        return _sets(torch.where(self.bond_mask, self.target, num_atoms), self.bond_ptr)

    def degree_weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        r"""$\frac{1}{\sqrt{d_i d_j}}$ of each bond, `[E, 1]`, and $\frac{1}{d_i}$ of each atom,
        `[V, 1]`, where $d$ is an atom's number of bonds plus one."""
        if dtype not in self._degree_weights:
            degree = (self.bond_ptr.diff() + 1).unsqueeze(-1).to(dtype)
            product = degree.index_select(0, self.source) * degree.index_select(0, self.target)
            self._degree_weights[dtype] = product.rsqrt(), degree.reciprocal()
        return self._degree_weights[dtype]

    @cached_property
    def _degree_weights(self) -> dict[torch.dtype, tuple[Tensor, Tensor]]:
        return {}

    def at_sources(self, x: Tensor) -> Tensor:
        """The row of each bond's source atom, `[V, C] -> [E, C]`."""
        return spread(x, self.source, self.bond_ptr, self.by_source)

    def sum_bonds(self, messages: Tensor) -> Tensor:
        """The sum over the bonds to each atom, `[E, C] -> [V, C]`."""
        return segment_sum(messages, self.bond_ptr)

    def at_atoms(self, rows: Tensor) -> Tensor:
        """The row of each atom's molecule, `[G + 1, C] -> [V, C]`; padding takes the last row."""
        return spread(rows, self.molecule, self.atom_ptr)

    def sum_atoms(self, x: Tensor) -> Tensor:
        """The sum over each molecule's atoms, `[V, C] -> [G + 1, C]`; the last row is padding."""
        return segment_sum(x, self.atom_ptr)


def _sets(index: Tensor, ptr: Tensor) -> Sets:
    """Sets with the offsets `ptr [n + 1]` and the padding after them, whose index is n. Where that
    waits for nothing, the padding is left out."""
    num_sets, counts = ptr.shape[0] - 1, ptr.diff()
    if values_are_at_hand(index):
        return make_sets(index[: int(ptr[-1])], counts, num_sets, padded=False)
    return make_sets(index, functional.pad(counts, (0, 1)), num_sets, padded=True)


def elements_of(sets: Sets, x: Tensor) -> Tensor:
    """The rows of `x [N, C]` that the sets have, which may be without padding."""
    return x if x.shape[0] == sets.num_elements else x[: sets.num_elements]


def segment_sum(values: Tensor, ptr: Tensor) -> Tensor:
    """Sum the rows `ptr[i]:ptr[i + 1]` for every i, in float32 or wider: `[N, C] -> [n, C]`. Rows
    after the last offset are ignored.

    Example:
        >>> segment_sum(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 2]))
        tensor([[3.],
                [0.]])
    """
    return torch.segment_reduce(wide(values), "sum", offsets=ptr, axis=0, unsafe=True)


def spread(rows: Tensor, index: Tensor, ptr: Tensor, order: Tensor | None = None) -> Tensor:
    """Give every element the row of its segment, `rows[index]`: `[n, C] -> [N, C]`. Elements
    outside all segments may have any index; they pass no gradient.

    `ptr [n + 1]` are the offsets of the segments' elements, and `order [N]` sorts the elements by
    segment, if they are not already.
    """
    return _Spread.apply(rows, index, ptr, order)


class _Spread(torch.autograd.Function):
    """`rows[index]`, whose derivative is a segment sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, ptr: Tensor, order: Tensor | None) -> Tensor:
        ctx.save_for_backward(ptr, order)
        return rows.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        ptr, order = ctx.saved_tensors
        if order is not None:
            gradient = gradient.index_select(0, order)
        return segment_sum(gradient, ptr).to(gradient.dtype), None, None, None
